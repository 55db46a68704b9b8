"""One layer's features and errors by class, and KFAC beside CFAC (TR sec. 7).

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from curvescope._checks import AnyFloat
from curvescope.errors import Inapplicable
from curvescope.experiments.stages.class_structure import need_one_label
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Finding, Outcome
from curvescope.layers import matrix_kind
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure
from curvescope.structure.class_factors import (
    LayerApproximation,
    Misalignment,
    layer_approximations,
)
from curvescope.structure.layers import MomentStatistics, layer_statistics

_LARGEST_COUNT = 200
"""Number of largest eigenvalues of each spectrum that are stored."""
_DECADES, _BINS = 8, 48


@dataclass(frozen=True)
class Moment:
    """Features or errors of a layer: spectra, and the measures of TR fig. 8 and 10."""

    total: Tensor
    class_part: Tensor
    class_and_cross: Tensor
    outliers: int
    separation: AnyFloat
    whitening: AnyFloat


@dataclass(frozen=True)
class ClassLayerFindings:
    """The class structure of one layer's features and errors, and KFAC beside CFAC.

    ``factors`` is None where outputs are grouped: CFAC has a Kronecker product for each label of a
    sample.
    """

    name: str
    classes: int
    moments: dict[str, Moment]  # "features", "errors"
    factors: FactorFindings | None


@dataclass(frozen=True)
class FactorFindings:
    """KFAC and CFAC of a layer beside its block of G."""

    errors: dict[str, Misalignment]  # "KFAC", "CFAC"
    class_cosine: AnyFloat  # mean over classes
    cross_cosine: AnyFloat  # mean over pairs of different classes
    centers: Tensor  # [bins], eigenvalues
    densities: dict[str, Tensor]  # "G", "KFAC", "CFAC" -> share of eigenvalues per decade
    floor: float  # where the bins begin
    below: dict[str, float]  # the share of eigenvalues below the bins: zero up to rounding
    sampled: tuple[str, ...]  # those of the three that are Lanczos quadratures


def compute(context: Context, layer: str) -> Outcome[Finding[ClassLayerFindings]]:
    """Measure the layer; where the method does not apply, the finding has the reason instead."""
    problem = context.problem
    try:
        if context.groups is None:
            need_one_label(problem)
        if matrix_kind(problem.model.get_submodule(layer)) is None:
            raise Inapplicable("class structure", "embeddings and norms have no matrix to look at")
        statistics = layer_statistics(problem, layers=[layer], classes=context.groups)[layer]
        factors = None if context.groups is not None else _factors(context, layer)
    except Inapplicable as error:
        return Outcome(Finding(layer, None, str(error)))
    findings = ClassLayerFindings(
        name=layer,
        classes=statistics.classes,
        moments={"features": _moment(statistics.features), "errors": _moment(statistics.errors)},
        factors=factors,
    )
    return Outcome(Finding(layer, findings))


def _factors(context: Context, layer: str) -> FactorFindings:
    approximation = layer_approximations(
        context.problem,
        layers=[layer],
        limit=context.settings.class_rows,
        steps=context.settings.steps,
        sharing=context.settings.sharing,
        generator=context.generator(f"{layer} approximations"),
    )[layer]
    centers, densities, below = _densities(approximation)
    off = ~torch.eye(approximation.classes, dtype=torch.bool)
    return FactorFindings(
        errors={"KFAC": approximation.kfac_error, "CFAC": approximation.cfac_error},
        class_cosine=float(approximation.class_cosines.nanmean()),  # classes without examples: NaN
        cross_cosine=float(approximation.cross_cosines[off].nanmean()),
        centers=centers,
        densities=densities,
        floor=float(centers[0] ** 1.5 / centers[1] ** 0.5),
        below=below,
        sampled=_sampled(approximation),
    )


def _moment(statistics: MomentStatistics) -> Moment:
    return Moment(
        total=statistics.total[:_LARGEST_COUNT].double().clone(),
        class_part=statistics.class_part[:_LARGEST_COUNT].double().clone(),
        class_and_cross=statistics.class_and_cross[:_LARGEST_COUNT].double().clone(),
        outliers=statistics.outliers,
        separation=statistics.separation,
        whitening=statistics.whitening,
    )


def _sampled(approximation: LayerApproximation) -> tuple[str, ...]:
    """Which spectra are Lanczos quadratures, the matrix being too large for all eigenvalues."""
    spectra = {
        "G": approximation.exact,
        "KFAC": approximation.kfac,
        "CFAC": approximation.cfac,
    }
    return tuple(
        name for name, spectrum in spectra.items() if isinstance(spectrum, SpectralMeasure)
    )


def _densities(
    approximation: LayerApproximation,
) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
    """Centers of bins over ``log₁₀ λ``, the three spectra in them, and the share of each below.

    Eigenvalues are counted in bins. A Lanczos quadrature has a few nodes instead, which are
    widened as in any density: in bins they would look like eigenvalues.
    """
    spectra = {
        "G": approximation.exact,
        "KFAC": approximation.kfac,
        "CFAC": approximation.cfac,
    }
    top = max(_largest(spectrum) for spectrum in spectra.values())
    end = torch.tensor(max(top, 1e-300), dtype=torch.float64).log10() + 0.05
    edges = torch.linspace(float(end) - _DECADES, float(end), _BINS + 1, dtype=torch.float64)
    width = float(edges[1] - edges[0])
    densities, smaller = {}, {}
    for name, spectrum in spectra.items():
        below = spectrum.cdf(10**edges)
        shares = below.diff().clamp(min=0)
        if isinstance(spectrum, SpectralMeasure):
            shares = _widened(spectrum, edges)
        densities[name] = shares / width
        smaller[name] = float(below[0])
    return 10 ** ((edges[1:] + edges[:-1]) / 2), densities, smaller


def _widened(spectrum: SpectralMeasure, edges: Tensor) -> Tensor:
    """The mass between the edges (decimal logarithms) with every node as wide as in a density."""
    tiny = 10 ** float(edges[0])
    sigma = spectrum.log_density(tiny, points=2).sigma / log(10)
    positive = spectrum.nodes > tiny
    nodes = torch.cat([spectrum.nodes[positive], spectrum.outliers.double()]).log10()
    mass = torch.cat(
        [
            spectrum.weights[positive] / spectrum.probes,
            torch.full_like(spectrum.outliers.double(), 1 / spectrum.dimension),
        ]
    )
    inside = torch.special.ndtr((edges[:, None] - nodes) / sigma).diff(dim=0) @ mass
    # Less than a tenth of an eigenvalue in a bin is none.
    return torch.where(inside > 0.1 / spectrum.dimension, inside, 0.0)


def _largest(spectrum: ExactSpectrum | SpectralMeasure) -> float:
    if isinstance(spectrum, ExactSpectrum):
        return float(spectrum.values.max())
    return spectrum.support[1]
