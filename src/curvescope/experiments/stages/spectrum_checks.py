"""Self-checks of one spectrum: estimates against each other and against exact eigenvalues."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import torch

from curvescope.experiments.checks import Check, Number, agree
from curvescope.spectra.eigensolver import EigenPairs
from curvescope.spectra.estimate import Estimate
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure

if TYPE_CHECKING:
    from curvescope.experiments.stages.spectra import Spectrum


def checks(spectrum: Spectrum, pairs: EigenPairs) -> tuple[Check, ...]:
    """Trace and norm from all estimates, and the outliers.

    The density, XTrace and Hutch++ draw independent probes. Each is compared with all eigenvalues
    where these were computed, else with the others.
    """
    name, measure, exact = spectrum.name, spectrum.measure, spectrum.exact
    norm = float(measure.outliers.abs().max())
    traces: dict[str, Number | Estimate[float]] = {
        "from the density": power_sum(measure, 1),
        "by XTrace": spectrum.trace,
    }
    squares = {"from the density": power_sum(measure, 2), "by Hutch++": squared(spectrum.frobenius)}
    results = [_converged(name, pairs)]
    if exact is None:
        return (
            *results,
            agree(f"tr {name}", traces, scale=norm),
            agree(f"‖{name}‖_F²", squares),
        )
    total = {"from all eigenvalues": Number(float(exact.values.sum()))}
    total_square = {"from all eigenvalues": Number(float(exact.values.square().sum()))}
    for way, number in traces.items():
        results.append(agree(f"tr {name}", {way: number, **total}, scale=norm))
    for way, number in squares.items():
        results.append(agree(f"‖{name}‖_F²", {way: number, **total_square}))
    return (*results, _outliers(spectrum, exact))


def power_sum(measure: SpectralMeasure, k: int) -> Number:
    """``Σ λᵏ`` from the density, with an error that few probes cannot make too small by chance.

    For a Gaussian probe the sampled part has the variance ``2 (Σ λ²ᵏ − (Σ λᵏ)²/n)`` over the
    eigenvalues that were not taken out, which the density itself gives. As an estimate this
    variance has the degrees of freedom of ``(Σ λ²ᵏ)² / Σ λ⁴ᵏ`` squares for each probe.
    """
    n, moment = measure.dimension, measure.moment(k)
    outliers = measure.outliers.double()

    def rest(power: int) -> float:
        return n * measure.moment(power).value - float((outliers**power).sum())

    variance = 2 * max(rest(2 * k) - rest(k) ** 2 / n, 0.0) / moment.probes
    fourth = rest(4 * k)
    squares = max(rest(2 * k) ** 2 / fourth, 1.0) if fourth > 0 else 1.0
    error = max(n * moment.stderr, sqrt(variance))
    return Number(n * moment.value, error, 1 + round(moment.probes * squares))


def squared(norm: Estimate[float]) -> Number:
    """The square, its error by the delta method."""
    return Number(norm.value**2, 2 * abs(norm.value) * norm.stderr, norm.probes)


def _converged(name: str, pairs: EigenPairs) -> Check:
    worst, allowed = float(pairs.residuals.max()), float(pairs.tolerance.max())
    statement = (
        f"the {len(pairs.values)} outlying eigenpairs of {name} have residuals up to {worst:.2g}, "
        f"{allowed:.2g} allowed"
    )
    return Check(statement, bool(pairs.converged))


def _outliers(spectrum: Spectrum, exact: ExactSpectrum) -> Check:
    """The outliers against all eigenvalues."""
    name, outliers = spectrum.name, spectrum.measure.outliers
    everything = torch.cat([exact.values, exact.values.new_zeros(min(exact.zeros, 1))])
    # Sizes in order, since ±λ may be taken in either order, and each against its nearest value.
    sizes = everything.abs().sort(descending=True).values[: len(outliers)]
    gap = max(
        float((outliers.abs().sort(descending=True).values[: len(sizes)] - sizes).abs().max()),
        float((outliers[:, None] - everything).abs().amin(1).max()),
    )
    allowed = float(spectrum.residuals.max()) + 1e-4 * float(exact.values.abs().max())
    return Check(
        f"the {len(outliers)} outliers of {name} differ from the exact eigenvalues by at most "
        f"{gap:.2g}, {allowed:.2g} allowed",
        gap <= allowed,
    )
