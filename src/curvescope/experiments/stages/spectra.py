"""The spectrum of one matrix: outliers, density, trace and norm, and all eigenvalues if few.

The eigenpairs of largest magnitude are taken out exactly (TR fig. 17), the rest is sampled by
stochastic Lanczos quadrature (TR alg. 3). Trace and Frobenius norm come from probes of their own,
so that the density can be held against them, and all of them against the exact eigenvalues. Which
of them is shown is decided in :mod:`curvescope.experiments.known`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from curvescope.experiments.checks import Number
from curvescope.experiments.stages.context import Context
from curvescope.experiments.stages.spectrum_checks import checks
from curvescope.experiments.store import Outcome, Stage
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.spectra.control import Status
from curvescope.spectra.eigenpairs import eigenpairs
from curvescope.spectra.exact import ExactSpectrum, exact_spectrum, log_distance
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.spectra.rank import rank_degeneracy
from curvescope.spectra.trace import frobenius, trace

MATRICES = ("H", "G", "E")


@dataclass(frozen=True)
class Spectrum:
    """Everything that was measured of one matrix."""

    name: str
    measure: SpectralMeasure
    residuals: Tensor  # of the outliers
    trace: Number
    frobenius: Number
    exact: ExactSpectrum | None
    degenerate: Number  # the mass of the Ritz value nearest zero (FF App. D)
    products: int
    converged: bool  # whether the residuals of all outliers are small
    no_diagonal: bool  # whether E is known to have none, so that tr H = tr G
    rank: int | None  # what the rank is at most, from a Gram form
    precision: float  # of a product: the distance from 1 to the next number

    @property
    def vanishes(self) -> bool:
        """Whether the matrix is zero, as E is for a network that is linear in its weights."""
        return not bool(self.measure.outliers.any())


def matrix(context: Context, name: str) -> LinearOperator:
    """``H``, ``G``, or ``E = H − G`` (TR 5.2)."""
    if name == "G":
        return GaussNewton(context.problem)
    H = Hessian(context.problem)
    return H if name == "H" else H - GaussNewton(context.problem)


def compute(context: Context, name: str) -> Outcome:
    """Measure one of the matrices.

    Cost: ``steps · probes + 2 · trace_probes`` products and those of the outliers.
    """
    A, settings = matrix(context, name), context.settings
    count = settings.outliers or context.outputs + 4
    pairs = eigenpairs(
        A,
        min(count, max(1, A.shape[0] // 4)),
        which="magnitude",
        tol=settings.tolerance,
        generator=context.generator(f"{name} outliers"),
        **context.control("outliers"),
    )
    measure = spectral_measure(
        A,
        steps=min(settings.steps, A.shape[0]),
        probes=settings.probes,
        deflate=pairs,
        generator=context.generator(f"{name} density"),
        **context.control("density"),
    )
    tr = trace(
        A,
        probes=settings.trace_probes,
        method="xtrace",
        generator=context.generator(f"{name} trace"),
        **context.control("trace"),
    )
    norm = frobenius(
        A,
        probes=settings.trace_probes,
        method="hutch++",
        generator=context.generator(f"{name} norm"),
        **context.control("norm"),
    )
    exact = exact_spectrum(A) if _rows(A) <= settings.exact_rows else None
    at_zero = rank_degeneracy(measure).nearest
    spectrum = Spectrum(
        name,
        measure,
        pairs.residuals.cpu().double(),
        Number(tr.value, tr.stderr, tr.probes),
        Number(norm.value, norm.stderr, norm.probes),
        exact,
        Number(at_zero.value, at_zero.stderr, at_zero.probes),
        pairs.products + measure.products + tr.products + norm.products,
        bool(pairs.converged),
        A.same_diagonal() is not A,
        _rank(A),
        torch.finfo(A.dtype).eps,
    )
    return Outcome(_values(spectrum), _arrays(spectrum), checks(spectrum, pairs))


def _rows(A: LinearOperator) -> int:
    """How large the smaller of the matrix and its Gram form is."""
    rank = _rank(A)
    return A.shape[0] if rank is None else min(A.shape[0], rank)


def _rank(A: LinearOperator) -> int | None:
    """The rows of a Gram form, which the rank cannot exceed."""
    dual = A.dual()
    return None if dual is None else dual.size


def _values(spectrum: Spectrum) -> dict[str, object]:
    measure, exact = spectrum.measure, spectrum.exact
    return {
        "matrix": spectrum.name,
        "dimension": measure.dimension,
        "outliers": measure.outliers.tolist(),
        "residuals": spectrum.residuals.tolist(),
        "trace": asdict(spectrum.trace),
        "frobenius": asdict(spectrum.frobenius),
        "degenerate": asdict(spectrum.degenerate),
        "support": list(measure.support),
        "status": measure.status.value,
        "converged": spectrum.converged,
        "E without diagonal": spectrum.no_diagonal,
        "rank at most": spectrum.rank,
        "precision": spectrum.precision,
        "products": spectrum.products,
        "density products": measure.products,
        "exact": None if exact is None else _exact_values(measure, exact),
    }


def _exact_values(measure: SpectralMeasure, exact: ExactSpectrum) -> dict[str, object]:
    """How the exact spectrum was found, and how far the density is from it in log|λ|."""
    floor = 1e-6 * max(float(exact.values.abs().max()), 1e-30)
    distance = log_distance(measure, exact, eps=floor)
    return {"zeros": exact.zeros, "form": exact.form, "log distance": distance}


def _arrays(spectrum: Spectrum) -> dict[str, Tensor]:
    measure = spectrum.measure
    arrays = {
        "nodes": measure.nodes,
        "weights": measure.weights,
        "node_residuals": measure.residuals,
        "outliers": measure.outliers,
        "residuals": spectrum.residuals,
    }
    if spectrum.exact is not None:
        arrays["exact"] = spectrum.exact.values
    return arrays


def restore(stage: Stage) -> Spectrum:
    """The spectrum as it was measured, from the directory alone."""
    values, arrays = stage.values, stage.arrays
    low, high = values["support"]
    measure = SpectralMeasure(
        arrays["nodes"],
        arrays["weights"],
        arrays["node_residuals"],
        arrays["outliers"],
        values["dimension"],
        (low, high),
        values["density products"],
        Status(values["status"]),
    )
    exact = None
    if values["exact"] is not None:
        exact = ExactSpectrum(arrays["exact"], values["exact"]["zeros"], values["exact"]["form"], 0)
    return Spectrum(
        values["matrix"],
        measure,
        arrays["residuals"],
        Number(**values["trace"]),
        Number(**values["frobenius"]),
        exact,
        Number(**values["degenerate"]),
        values["products"],
        values.get("converged", True),
        values.get("E without diagonal", False),
        values.get("rank at most"),
        values.get("precision", torch.finfo(torch.float64).eps),
    )
