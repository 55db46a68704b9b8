"""One layer's features and errors by class, and KFAC beside CFAC (CC-4, CC-5; TR sec. 7)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome, Stage
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure
from curvescope.structure.cfac import LayerApproximation, Misalignment, layer_approximations
from curvescope.structure.layers import MomentStatistics, layer_statistics

_KEPT = 200
"""Eigenvalues of each spectrum that are kept."""
_DECADES, _BINS = 8, 48


@dataclass(frozen=True)
class Moment:
    """Features or errors of a layer: spectra, and the measures of TR fig. 8 and 10."""

    total: Tensor
    class_: Tensor
    class_and_cross: Tensor
    outliers: int
    separation: float
    whitening: float


@dataclass(frozen=True)
class ClassLayerFindings:
    """What the classes do to one layer."""

    name: str
    classes: int
    moments: dict[str, Moment]  # "features", "errors"
    errors: dict[str, Misalignment]  # "KFAC", "CFAC"
    class_cosine: float  # mean over classes
    cross_cosine: float  # mean over pairs of different classes
    centres: Tensor  # [bins], eigenvalues
    densities: dict[str, Tensor]  # "G", "KFAC", "CFAC" -> share of eigenvalues per decade


def compute(context: Context, layer: str) -> Outcome:
    """Measure the layer; one that does not allow it is left out, with the reason."""
    problem, settings = context.problem, context.settings
    try:
        statistics = layer_statistics(problem, layers=[layer])[layer]
        approximation = layer_approximations(
            problem,
            layers=[layer],
            limit=settings.class_rows,
            steps=settings.steps,
            generator=context.generator(f"{layer} approximations"),
        )[layer]
    except CurvescopeError as error:
        return Outcome({"layer": layer, "left out": str(error)})
    values: dict[str, Any] = {
        "layer": layer,
        "left out": None,
        "classes": statistics.classes,
        "moments": {},
        "KFAC": asdict(approximation.kfac_error),
        "CFAC": asdict(approximation.cfac_error),
        **_cosines(approximation),
    }
    arrays: dict[str, Tensor] = _densities(approximation)
    for name in ("features", "errors"):
        moment: MomentStatistics = getattr(statistics, name)
        values["moments"][name] = {
            "outliers": moment.outliers,
            "separation": moment.separation,
            "whitening": moment.whitening,
        }
        for part in ("total", "class_", "class_and_cross"):
            arrays[f"{name} {part}"] = getattr(moment, part)[:_KEPT].double().clone()
    return Outcome(values, arrays)


def _cosines(approximation: LayerApproximation) -> dict[str, float]:
    """Means over classes with examples, and over pairs of different ones."""
    off = ~torch.eye(approximation.classes, dtype=torch.bool)
    return {
        "class cosine": float(approximation.class_cosines.nanmean()),
        "cross cosine": float(approximation.cross_cosines[off].nanmean()),
    }


def _densities(approximation: LayerApproximation) -> dict[str, Tensor]:
    """The three spectra in bins of ``log₁₀ λ``; all that is smaller is in the first."""
    spectra = {
        "G": approximation.exact,
        "KFAC": approximation.kfac,
        "CFAC": approximation.cfac,
    }
    top = max(_largest(spectrum) for spectrum in spectra.values())
    end = torch.tensor(max(top, 1e-300), dtype=torch.float64).log10() + 0.05
    edges = torch.linspace(float(end) - _DECADES, float(end), _BINS + 1, dtype=torch.float64)
    width = float(edges[1] - edges[0])
    arrays = {"centres": 10 ** ((edges[1:] + edges[:-1]) / 2)}
    for name, spectrum in spectra.items():
        below = spectrum.cdf(10**edges)
        shares = below.diff()
        shares[0] += below[0]
        arrays[f"density {name}"] = shares.clamp(min=0) / width
    return arrays


def _largest(spectrum: ExactSpectrum | SpectralMeasure) -> float:
    if isinstance(spectrum, ExactSpectrum):
        return float(spectrum.values.max())
    return spectrum.support[1]


def restore(stage: Stage) -> ClassLayerFindings | None:
    """What was found; nothing where the layer was left out."""
    values, arrays = stage.values, stage.arrays
    if values["left out"] is not None:
        return None
    moments = {
        name: Moment(
            arrays[f"{name} total"],
            arrays[f"{name} class_"],
            arrays[f"{name} class_and_cross"],
            **numbers,
        )
        for name, numbers in values["moments"].items()
    }
    return ClassLayerFindings(
        values["layer"],
        values["classes"],
        moments,
        {name: Misalignment(**values[name]) for name in ("KFAC", "CFAC")},
        values["class cosine"],
        values["cross cosine"],
        arrays["centres"],
        {name: arrays[f"density {name}"] for name in ("G", "KFAC", "CFAC")},
    )
