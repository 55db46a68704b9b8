"""The spectrum of one matrix: outliers, density, trace and norm, and all eigenvalues if few.

The eigenpairs of largest magnitude are taken out exactly (TR fig. 17), the rest is sampled by
stochastic Lanczos quadrature (TR alg. 3). Trace and Frobenius norm come from probes of their own,
so that the density can be held against them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt

import torch
from torch import Tensor

from curvescope.experiments.checks import Check, Number, agree
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome, Stage
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.spectra.control import Status
from curvescope.spectra.eigenpairs import EigenPairs, eigenpairs
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
    degenerate: Number  # the share of eigenvalues at zero
    products: int


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
    )
    return Outcome(_values(spectrum), _arrays(spectrum), _checks(spectrum, pairs))


def _rows(A: LinearOperator) -> int:
    """How large the smaller of the matrix and its Gram form is."""
    dual = A.dual()
    return A.shape[0] if dual is None else min(A.shape[0], dual.size)


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
    )


# Self-checks ----------------------------------------------------------------------------


def _checks(spectrum: Spectrum, pairs: EigenPairs) -> tuple[Check, ...]:
    name, measure, exact = spectrum.name, spectrum.measure, spectrum.exact
    first, second = (_power_sum(measure, k) for k in (1, 2))
    square = _squared(spectrum.frobenius)
    norm = float(measure.outliers.abs().max())
    traces = {"from the density": first, "by XTrace": spectrum.trace}
    found = [
        agree(f"tr {name}", traces, scale=norm),
        agree(f"‖{name}‖_F²", {"from the density": second, "by Hutch++": square}),
        _converged(name, pairs),
    ]
    if exact is not None:
        found += _against_exact(spectrum, exact)
    return tuple(found)


def _power_sum(measure: SpectralMeasure, k: int) -> Number:
    """``Σ λᵏ`` from the density, with an error that few probes cannot make too small by chance.

    For a Gaussian probe the sampled part has the variance ``2 (Σ λ²ᵏ − (Σ λᵏ)²/n)`` over the
    eigenvalues that were not taken out, which the density itself gives.
    """
    n, moment = measure.dimension, measure.moment(k)
    known = measure.outliers.double()

    def rest(power: int) -> float:
        return n * measure.moment(power).value - float((known**power).sum())

    variance = 2 * max(rest(2 * k) - rest(k) ** 2 / n, 0.0) / moment.probes
    return Number(n * moment.value, max(n * moment.stderr, sqrt(variance)), moment.probes)


def _squared(number: Number) -> Number:
    return Number(number.value**2, 2 * number.value * number.stderr, number.probes)


def _converged(name: str, pairs: EigenPairs) -> Check:
    worst, allowed = float(pairs.residuals.max()), float(pairs.tolerance.max())
    statement = (
        f"the {len(pairs.values)} outlying eigenpairs of {name} have residuals up to {worst:.2g}, "
        f"{allowed:.2g} allowed"
    )
    return Check(statement, bool(pairs.converged))


def _against_exact(spectrum: Spectrum, exact: ExactSpectrum) -> list[Check]:
    """Trace and outliers against all eigenvalues."""
    name, outliers = spectrum.name, spectrum.measure.outliers
    total = Number(float(exact.values.sum()))
    everything = torch.cat([exact.values, exact.values.new_zeros(min(exact.zeros, 1))])
    # Sizes in order, since ±λ may be taken in either order, and each against its nearest value.
    sizes = everything.abs().sort(descending=True).values[: len(outliers)]
    gap = max(
        float((outliers.abs().sort(descending=True).values[: len(sizes)] - sizes).abs().max()),
        float((outliers[:, None] - everything).abs().amin(1).max()),
    )
    scale = float(exact.values.abs().max())
    allowed = float(spectrum.residuals.max()) + 1e-4 * scale
    traces = {"from all eigenvalues": total, "by XTrace": spectrum.trace}
    return [
        agree(f"tr {name}", traces, scale=scale),
        Check(
            f"the {len(outliers)} outliers of {name} differ from the exact eigenvalues by at most "
            f"{gap:.2g}, {allowed:.2g} allowed",
            gap <= allowed,
        ),
    ]
