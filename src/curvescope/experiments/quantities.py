"""The best value of one quantity of one matrix, from all the ways in which it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, isfinite
from typing import Literal, get_args

import torch

from curvescope._checks import AnyFloat
from curvescope._numbers import plus_minus
from curvescope.experiments.stages.spectra import MATRICES, Spectrum
from curvescope.flatness.measures import CurvatureMeasures
from curvescope.flatness.report import SharpnessReport
from curvescope.spectra.control import Status
from curvescope.spectra.estimate import Estimate

LARGEST, SMALLEST = "largest eigenvalue", "smallest eigenvalue"
TRACE, MEAN = "trace", "mean eigenvalue"
FROBENIUS, MEAN_SQUARE = "Frobenius norm", "mean squared eigenvalue"
ABSOLUTE, RANK = "sum of |eigenvalues|", "effective rank"
SMALL = "share below 1 % of max |λ|"
LOG_DETERMINANT = "log determinant"
QUANTITIES = (LARGEST, SMALLEST, TRACE, MEAN, FROBENIUS, MEAN_SQUARE, ABSOLUTE, RANK, SMALL)
NEAR = 0.01
"""Eigenvalues below this part of the spectral norm are small."""

How = Literal["exact", "converged", "estimate", "at most", "at least"]
_ORDER = get_args(How)


@dataclass(frozen=True)
class Value:
    """A value of a quantity, its error, and how it was obtained.

    ``how`` is ``"exact"`` (up to rounding), ``"converged"`` (an eigenvalue lies within ``error``,
    its residual), ``"estimate"`` (``error`` is a standard error, or the residual of an eigenvalue
    that did not converge), ``"at most"`` or ``"at least"`` (a bound). ``source`` names the method.

    >>> print(Value(52.13, source="all eigenvalues"))
    52.13 exact
    >>> print(Value(53.6, 1.5, "estimate"), Value(0.31, how="at most"), sep="; ")
    53.6 ± 1.5; ≤ 0.31
    """

    value: AnyFloat
    error: AnyFloat = 0.0
    how: How = "exact"
    source: str = ""

    def __str__(self) -> str:
        if self.how in ("at most", "at least"):
            return f"{'≤' if self.how == 'at most' else '≥'} {plus_minus(self.value, 0.0)}"
        if self.how == "exact":
            return f"{plus_minus(self.value, 0.0)} exact"
        if not isfinite(self.error):
            return f"{plus_minus(self.value, 0.0)}, error unknown"
        return plus_minus(self.value, self.error)

    def scaled(self, factor: float) -> Value:
        """A positive multiple."""
        return replace(self, value=self.value * factor, error=self.error * factor)


def best(candidates: Sequence[Value | None]) -> Value | None:
    """The candidate of the most reliable kind (the order of ``How``), then of the smallest error.

    >>> print(best([Value(2.0, 0.1, "estimate"), Value(2.1, 0.5, "converged"), None]))
    2.10 ± 0.50
    """
    there = [entry for entry in candidates if entry is not None]
    return min(there, key=lambda entry: (_ORDER.index(entry.how), entry.error), default=None)


def exact_end(spectrum: Spectrum, *, upper: bool) -> Value | None:
    """``λ_max`` or ``λ_min`` from all eigenvalues; below the rounding of the norm it is zero.

    Gram matrices are made in float64; the matrix itself comes from products in their precision.
    """
    exact = spectrum.exact
    if exact is None:
        return None
    values = torch.cat([exact.values, exact.values.new_zeros(min(exact.zeros, 1))])
    end, norm = float(values.max() if upper else values.min()), float(values.abs().max())
    eps = torch.finfo(values.dtype).eps if exact.form == "dual" else spectrum.precision
    if abs(end) <= 4 * len(values) ** 0.5 * eps * norm:
        end = 0.0
    return Value(end, source="all eigenvalues")


def end_of_pairs(spectrum: Spectrum, *, upper: bool) -> Value:
    """``λ_max`` or ``λ_min`` from the eigenpairs of largest magnitude, or a bound on it.

    A positive value among them is the largest eigenvalue there is: one beyond it would be among
    them too. Without any, ``λ_max`` is at most the least of their magnitudes.
    """
    sign = 1.0 if upper else -1.0
    values = sign * spectrum.measure.outliers.double()
    best, residual = float(values.max()), float(spectrum.residuals[values.argmax()])
    how: How = "converged" if spectrum.converged else "estimate"
    if best > 0 or not bool(values.any()):
        return Value(sign * best + 0.0, residual, how, "the eigenpairs of largest magnitude")
    words = "no eigenpair of largest magnitude has this sign"
    side: How = "at most" if upper else "at least"
    return Value(sign * float(values.abs().min()), 0.0, side, words)


def end_of(
    spectrum: Spectrum | None, measures: CurvatureMeasures | None, *, upper: bool
) -> Value | None:
    """The algebraically largest or smallest eigenvalue."""
    candidates: list[Value | None] = []
    if measures is not None:
        side = measures.largest if upper else measures.smallest
        candidates.append(_of_estimate(side, "a search at this end of the spectrum"))
    if spectrum is not None:
        candidates.insert(0, exact_end(spectrum, upper=upper))
        candidates.append(end_of_pairs(spectrum, upper=upper))
        rank, dimension = spectrum.rank, spectrum.measure.dimension
        if not upper and rank is not None and rank < dimension:
            words = f"positive semi-definite, of rank {rank:,} at most"
            candidates.insert(0, Value(0.0, source=words))
    return best(candidates)


def _of_estimate(estimate: Estimate[float], source: str) -> Value:
    error = max(estimate.stderr, estimate.bias)
    if error == 0:
        return Value(estimate.value, source="all eigenvalues")
    converged = estimate.bias > 0 and estimate.status is Status.CONVERGED
    return Value(estimate.value, error, "converged" if converged else "estimate", source)


def _sampled(estimate: Estimate[float], source: str) -> Value:
    """An estimate; without an error it is exact, as with a random vector for each dimension."""
    how: How = "estimate" if estimate.stderr else "exact"
    return Value(estimate.value, estimate.stderr, how, source)


def traces_of(
    measured: Mapping[str, Spectrum], apart: Mapping[str, CurvatureMeasures]
) -> dict[str, Value]:
    """Traces that satisfy ``tr H = tr G + tr E``, with ``tr E = 0`` where E has no diagonal."""
    traces = {name: _trace(measured.get(name), apart.get(name)) for name in MATRICES}
    if any(spectrum.no_diagonal for spectrum in measured.values()):
        shared = best([traces["G"], traces["H"]])
        traces["G"] = shared
        traces["H"] = shared if shared is None else replace(shared, source=_JOINED[shared.how])
        traces["E"] = Value(0.0, source="E has no diagonal")
    elif (g := traces["G"]) is not None and (e := traces["E"]) is not None:
        how: How = "exact" if g.how == e.how == "exact" else "estimate"
        total = Value(g.value + e.value, hypot(g.error, e.error), how, "tr G + tr E")
        traces["H"] = best([traces["H"], total])
    return {name: entry for name, entry in traces.items() if entry is not None}


_JOINED = {
    "exact": "tr G from all eigenvalues, since E has no diagonal",
    "estimate": "random vectors on G, since E has no diagonal",
}


def _trace(spectrum: Spectrum | None, measures: CurvatureMeasures | None) -> Value | None:
    candidates: list[Value | None] = []
    if measures is not None:
        candidates.append(_of_estimate(measures.trace, "random vectors"))
    if spectrum is not None:
        candidates.append(_sampled(spectrum.trace, "random vectors, XTrace"))
        if spectrum.exact is not None:
            total = float(spectrum.exact.values.sum())
            candidates.append(Value(total, source="all eigenvalues"))
    return best(candidates)


def frobenius_of(spectrum: Spectrum | None, measures: CurvatureMeasures | None) -> Value | None:
    """``‖A‖_F``."""
    candidates: list[Value | None] = []
    if measures is not None:
        candidates.append(_of_estimate(measures.frobenius, "random vectors"))
    if spectrum is not None:
        candidates.append(_sampled(spectrum.frobenius, "random vectors, Hutch++"))
        if spectrum.exact is not None:
            total = float(spectrum.exact.values.norm())
            candidates.append(Value(total, source="all eigenvalues"))
    return best(candidates)


def absolute_of(
    name: str,
    spectrum: Spectrum | None,
    measures: CurvatureMeasures | None,
    trace: Value | None,
) -> Value | None:
    """``Σ |λ|``; the trace for G, which has no negative eigenvalue."""
    if name == "G":
        return trace
    candidates: list[Value | None] = []
    if measures is not None:
        candidates.append(_of_estimate(measures.absolute_sum, "random vectors"))
    if spectrum is not None:
        mean = spectrum.measure.expectation(torch.abs)
        estimate = Value(mean.value, mean.stderr, "estimate", "the density")
        candidates.append(estimate.scaled(spectrum.measure.dimension))
        if spectrum.exact is not None:
            total = float(spectrum.exact.values.abs().sum())
            candidates.append(Value(total, source="all eigenvalues"))
    return best(candidates)


def small_share(spectrum: Spectrum) -> Value:
    """The share of eigenvalues up to :data:`NEAR` of the spectral norm."""
    measure, every = spectrum.measure, spectrum.exact
    if every is not None:
        limit = NEAR * float(every.values.abs().max()) if len(every.values) else 0.0
        count = int((every.values.abs() <= limit).sum()) + every.zeros
        return Value(count / every.dimension, source="all eigenvalues")
    limit = NEAR * float(measure.outliers.abs().max())
    share = measure.expectation(lambda x: (x.abs() <= limit).double())
    return Value(share.value, share.stderr, "estimate", "the density")


def log_determinant_of(spectrum: Spectrum | None, report: SharpnessReport) -> Value:
    """``log det(G + damping · I)``."""
    if spectrum is None or spectrum.exact is None or report.damping <= 0:
        return _of_estimate(report.log_determinant, "random vectors")
    exact, damping = spectrum.exact, torch.tensor(report.damping, dtype=torch.float64)
    total = (exact.values.clamp(min=0.0) + damping).log().sum() + exact.zeros * damping.log()
    return Value(float(total), source="all eigenvalues")


def dimension_of(spectrum: Spectrum | None, measures: CurvatureMeasures | None) -> int:
    """The number of parameters."""
    if spectrum is not None:
        return spectrum.measure.dimension
    assert measures is not None, "one of the two is required"
    return measures.dimension


def with_derived(row: dict[str, Value], dimension: int) -> dict[str, Value]:
    """The row with its means and its effective rank, in the order of :data:`QUANTITIES`."""
    if (trace := row.get(TRACE)) is not None:
        row[MEAN] = trace.scaled(1 / dimension)
    if (norm := row.get(FROBENIUS)) is not None:
        row[MEAN_SQUARE] = squared(norm).scaled(1 / dimension)
        if (total := row.get(ABSOLUTE)) is not None:
            row[RANK] = _rank(total, norm)
    return {quantity: row[quantity] for quantity in QUANTITIES if quantity in row}


def squared(norm: Value) -> Value:
    """The square, its error by the delta method."""
    return replace(norm, value=norm.value**2, error=2 * norm.value * norm.error)


def _rank(total: Value, norm: Value) -> Value:
    """``(Σ |λ|)² / Σ λ²``; its error adds the relative errors of both sums."""
    how = max(total.how, norm.how, key=_ORDER.index)
    if norm.value <= 0 or total.value <= 0:
        return Value(0.0, how=how, source="both sums")
    rank = (total.value / norm.value) ** 2
    relative = 2 * total.error / total.value + 2 * norm.error / norm.value
    return Value(rank, rank * relative if relative else 0.0, how, "both sums")
