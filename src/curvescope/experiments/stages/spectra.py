"""The spectrum of one matrix: outliers, density, trace and norm, and all eigenvalues if few.

The eigenpairs of largest magnitude are taken out exactly (TR fig. 17), the rest is sampled by
stochastic Lanczos quadrature (TR alg. 3). Trace and Frobenius norm come from probes of their own,
so that the density can be held against them, and all of them against the exact eigenvalues. The
values that are shown are chosen in :mod:`curvescope.experiments.best_values`.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
    FF: Granziol (2020), *Flatness is a False Friend*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope._checks import AnyFloat
from curvescope.experiments.configuration import Settings
from curvescope.experiments.stages.context import Context
from curvescope.experiments.stages.spectrum_checks import checks
from curvescope.experiments.store import Outcome, RunDirectory
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.estimate import Estimate
from curvescope.spectra.exact import ExactSpectrum, exact_spectrum, log_distance
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.spectra.rank import rank_degeneracy
from curvescope.spectra.traces import frobenius, trace

MATRICES = ("H", "G", "E")
_MOST = 128
"""Outliers, however large a vocabulary is."""


@dataclass(frozen=True)
class Spectrum:
    """Everything that was measured of one matrix."""

    name: str
    measure: SpectralMeasure
    residuals: Tensor  # of the outliers
    trace: Estimate[float]
    frobenius: Estimate[float]
    exact: ExactSpectrum | None
    degenerate: Estimate[float]  # the mass of the Ritz value nearest zero (FF App. D)
    products: int
    converged: bool  # whether the residuals of all outliers are small
    no_diagonal: bool  # whether E is proved to have none, so that tr H = tr G
    rank: int | None  # what the rank is at most, from a Gram form
    precision: float  # of a product: the distance from 1 to the next number
    log_distance: AnyFloat | None  # from the density to all eigenvalues, in log|λ|

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


def compute(context: Context, name: str) -> Outcome[Spectrum]:
    """Measure one of the matrices.

    Cost: ``steps · probes + 2 · trace_probes`` products and those of the outliers.
    """
    A, settings = matrix(context, name), context.settings
    count = most_outliers(settings, context.outputs)
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
    spectrum = Spectrum(
        name,
        measure,
        pairs.residuals.cpu().double(),
        tr,
        norm,
        exact,
        rank_degeneracy(measure).nearest,
        pairs.products + measure.products + tr.products + norm.products,
        bool(pairs.converged),
        A.same_diagonal() is not A,
        _rank(A),
        torch.finfo(A.dtype).eps,
        None if exact is None else _distance(measure, exact),
    )
    return Outcome(spectrum, checks(spectrum, pairs))


def most_outliers(settings: Settings, outputs: int) -> int:
    """How many eigenpairs are taken out of the spectrum of a network with so many outputs."""
    return settings.outliers or min(outputs + 4, _MOST)


def _distance(measure: SpectralMeasure, exact: ExactSpectrum) -> float:
    floor = 1e-6 * max(float(exact.values.abs().max()), 1e-30)
    return log_distance(measure, exact, eps=floor)


def _rows(A: LinearOperator) -> int:
    """The number of rows of the matrix or of its Gram form, whichever is smaller."""
    rank = _rank(A)
    return A.shape[0] if rank is None else min(A.shape[0], rank)


def _rank(A: LinearOperator) -> int | None:
    """An upper bound on the rank: the rows of a Gram form."""
    dual = A.dual()
    return None if dual is None else dual.size


def spectra_of(run: RunDirectory) -> dict[str, Spectrum]:
    """The spectra that are finished in a run, by the names of their matrices."""
    return {
        name: run.result(f"spectrum-{name}", Spectrum)
        for name in MATRICES
        if run.has(f"spectrum-{name}")
    }
