"""The arithmetic of a PAC-Bayes certificate: what each step costs, and the bound it adds up to.

With probability 1 − δ over the sample, for all posteriors Q and all prior variances on the grid,

    kl(ê(Q) ‖ e(Q)) ≤ (KL(Q‖P_j) + Σ_l log(π² j_l² / 6) + confidence term) / divisor,

and with probability 1 − δ' over the draws ``ê(Q)`` is at most the Monte-Carlo bound. Both hold
together with probability 1 − δ − δ'. All functions are pure, take and return floats, and round
upwards.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from curvescope._checks import finite_float, one_of, positive_int
from curvescope.certificates.divergence import kl_inverse, total_upwards, upwards
from curvescope.errors import CurvescopeError

FORMS = ("maurer", "seeger")


@dataclass(frozen=True)
class Confidence:
    """What may fail, and with which probability: the budget of a certificate.

    Args:
        sample: δ, that the sample misleads the PAC-Bayes bound; the points of the prior grid share
            it (``Σ_j 6/(π² j²) = 1`` for every group of parameters).
        draws: δ', that the random draws mislead the estimate of the empirical error.

    Together they may be at most one half: a bound that is wrong more often than right is none.

    >>> Confidence().level  # DH §6: 0.965
    0.965
    >>> Confidence(1e-300, 1e-300).level < 1
    True
    """

    sample: float = 0.025
    draws: float = 0.01

    def __post_init__(self) -> None:
        for name in ("sample", "draws"):
            value = finite_float("Confidence", name, getattr(self, name))
            if not 0 < value < 1:
                rule = f"`{name}` must lie between 0 and 1"
                raise CurvescopeError("Confidence", rule, given=repr(value))
        if self.sample + self.draws > 0.5:
            rule = "`sample` + `draws` must be at most 0.5"
            raise CurvescopeError("Confidence", rule, given=f"{self.sample + self.draws:g}")

    @property
    def level(self) -> float:
        """``1 − δ − δ'`` of the decimals that δ and δ' are written as, 12 digits, rounded down."""
        exact = 1 - Fraction(repr(self.sample)) - Fraction(repr(self.draws))
        return math.floor(exact * 10**12) / 10**12


@dataclass(frozen=True)
class PriorGrid:
    """The prior variances that a union bound pays for: ``λ_j = c exp(−j/b)``, ``j = 1, 2, …``.

    Fixed before the data are seen (Dziugaite & Roy 2017 §4; DH App. G: b = 100, c = 0.1).

    Args:
        precision: ``b``, points per factor e.
        largest: ``c``, the variance that no point reaches.

    >>> grid = PriorGrid()
    >>> round(grid.variance(230), 6), round(grid.penalty(1), 6)  # c e^{-2.3}, log(π²/6)
    (0.010026, 0.4977)
    """

    precision: float = 100.0
    largest: float = 0.1

    def __post_init__(self) -> None:
        for name in ("precision", "largest"):
            if not finite_float("PriorGrid", name, getattr(self, name)) > 0:
                rule = f"`{name}` must be positive"
                raise CurvescopeError("PriorGrid", rule, given=repr(getattr(self, name)))

    def variance(self, j: int) -> float:
        """``λ_j``."""
        return self.largest * math.exp(-positive_int("PriorGrid.variance", "j", j) / self.precision)

    def penalty(self, j: int) -> float:
        """``log(π² j² / 6)``, what choosing the j-th point after seeing the data costs."""
        j = positive_int("PriorGrid.penalty", "j", j)
        return upwards(2 * math.log(j) + math.log(math.pi**2 / 6), 10)  # two logarithms, a sum

    def around(self, variance: float) -> tuple[int, ...]:
        """The points next to a variance: ``j = b log(c/λ)`` rounded down and up, at least 1.

        >>> PriorGrid().around(0.01), PriorGrid().around(5.0)
        ((230, 231), (1,))
        """
        if not finite_float("PriorGrid.around", "variance", variance) > 0:
            rule = "`variance` must be positive"
            raise CurvescopeError("PriorGrid.around", rule, given=repr(variance))
        j = self.precision * math.log(self.largest / variance)
        return tuple(sorted({max(1, math.floor(j)), max(1, math.ceil(j))}))

    def best(self, variance: float, kl: Callable[[float], float]) -> GridPoint:
        """The better of the points next to ``variance``, by ``KL(Q‖P_j) + log(π² j²/6)``.

        >>> PriorGrid().best(0.05, lambda v: 100 * abs(math.log(v / 0.05))).j
        69
        """
        points = (
            GridPoint(j, self.variance(j), kl(self.variance(j)), self.penalty(j))
            for j in self.around(variance)
        )
        return min(points, key=lambda point: point.kl + point.penalty)


@dataclass(frozen=True)
class GridPoint:
    """A prior variance on the grid, with what it costs."""

    j: int
    variance: float
    kl: float
    penalty: float


@dataclass(frozen=True)
class Complexity:
    """The right-hand side of the bound, item by item; ``value`` is their sum over the divisor."""

    kl: float
    grid: float
    confidence: float
    divisor: int

    def __post_init__(self) -> None:
        positive_int("Complexity", "divisor", self.divisor)

    @property
    def value(self) -> float:
        """``(kl + grid + confidence) / divisor``, rounded up."""
        return upwards(total_upwards([self.kl, self.grid, self.confidence]) / self.divisor, 2)


def complexity(
    kl: float, penalties: Sequence[float], *, samples: int, delta: float, form: str = "maurer"
) -> Complexity:
    """What ``kl(ê(Q)‖e(Q))`` may be at most, with probability 1 − δ over ``samples`` examples.

    ``form="maurer"``: ``(KL + Σ penalties + log(2√n/δ)) / n`` (Maurer 2004, needs n ≥ 8).
    ``form="seeger"``: ``(KL + Σ penalties + log(n/δ)) / (n − 1)`` (DH eq. 60).

    Args:
        kl: ``KL(Q‖P)``.
        penalties: What the choice of the prior on its grid costs, one term per group.
        samples: ``n``, how many examples are certified on.
        delta: δ.
        form: Which of the two inequalities.

    Raises:
        CurvescopeError: If a number is outside its range.

    >>> terms = complexity(1000.0, [12.0], samples=10_000, delta=0.025)
    >>> round(terms.confidence, 4), round(terms.value, 6)  # log(200/0.025) = 8.9872
    (8.9872, 0.102099)
    """
    one_of("complexity", "form", form, FORMS)
    n = positive_int("complexity", "samples", samples, 8)
    if not 0 < delta < 1:
        raise CurvescopeError("complexity", "`delta` must lie between 0 and 1", given=repr(delta))
    kl = finite_float("complexity", "kl", kl, 0.0)
    grid = total_upwards(penalties)
    risk = upwards(-math.log(delta))
    if form == "maurer":
        return Complexity(kl, grid, total_upwards([_log_upwards(2 * math.sqrt(n)), risk]), n)
    return Complexity(kl, grid, total_upwards([_log_upwards(n), risk]), n - 1)


def _log_upwards(x: float) -> float:
    """``log x`` for a number that is itself rounded to nearest, rounded up."""
    return upwards(math.log(upwards(float(x), 1)))


def monte_carlo_bound(mean: float, draws: int, *, delta: float) -> float:
    """An upper bound on an expectation from independent draws in [0, 1], with probability 1 − δ'.

    ``kl⁻¹(mean, log(1/δ')/m)``: for ``mean ≤ e`` the Chernoff bound gives
    ``P[kl(mean‖e) ≥ ε] ≤ exp(−m ε)`` (Hoeffding 1963, thm 1; draws in [0, 1] by convexity, draws
    with different expectations, of average e, by the concavity of ``log(1 − p + p e^t)`` in p).
    Dziugaite & Roy and DH write ``log(2/δ')``, which also covers the other side; one side is
    needed.

    Args:
        mean: The average of the draws.
        draws: ``m``, how many there were.
        delta: δ'.

    Raises:
        CurvescopeError: If a number is outside its range.

    >>> round(monte_carlo_bound(0.0, 100, delta=0.01), 6)  # 1 − 0.01^(1/100)
    0.045007
    """
    m = positive_int("monte_carlo_bound", "draws", draws)
    if not 0 < delta < 1:
        rule = "`delta` must lie between 0 and 1"
        raise CurvescopeError("monte_carlo_bound", rule, given=repr(delta))
    return kl_inverse(mean, upwards(upwards(-math.log(delta)) / m, 2))


@dataclass(frozen=True)
class RiskBound:
    """The bound on the error of new examples, with what it is made of."""

    value: float
    error_bound: float
    terms: Complexity


def risk_bound(
    error: float,
    draws: int,
    kls: Sequence[float],
    penalties: Sequence[float],
    *,
    samples: int,
    confidence: Confidence,
    form: str = "maurer",
) -> RiskBound:
    """``kl⁻¹(kl⁻¹(ê_m, log(1/δ')/m), (KL + penalties + confidence term)/divisor)``.

    The outer inverse grows with its first argument, so that the two steps may be taken one after
    the other; both hold together with probability ``1 − δ − δ'``.

    Args:
        error: ``ê_m``, the average of the draws.
        draws: ``m``.
        kls: ``KL(Q‖P)`` in parts, one for each group of parameters.
        penalties: What the choice of each group's prior cost.
        samples: ``n``.
        confidence: δ and δ'.
        form: See :func:`complexity`.

    >>> bound = risk_bound(0.0214, 50_000, [3766.1], [11.0], samples=60_000, form="seeger",
    ...                    confidence=Confidence())
    >>> round(bound.error_bound, 4), round(bound.value, 3)  # DH table 9, T-600 ITER
    (0.0234, 0.12)
    """
    delta = confidence.sample
    terms = complexity(total_upwards(kls), penalties, samples=samples, delta=delta, form=form)
    error_bound = monte_carlo_bound(error, draws, delta=confidence.draws)
    return RiskBound(kl_inverse(error_bound, terms.value), error_bound, terms)


def draws_for_slack(error: float, slack: float, *, delta: float) -> int:
    """How many draws put the Monte-Carlo bound at most ``slack`` above an error of ``error``.

    The smallest m with ``kl(error‖error + slack) ≥ log(1/δ')/m``. To be called with an estimate
    from *other* draws than those of the certificate: m must not depend on them.

    >>> m = draws_for_slack(0.03, 0.001, delta=0.01)
    >>> monte_carlo_bound(0.03, m, delta=0.01) <= 0.031 < monte_carlo_bound(0.03, m - 9, delta=0.01)
    True
    """
    if not finite_float("draws_for_slack", "slack", slack) > 0:
        raise CurvescopeError("draws_for_slack", "`slack` must be positive", given=repr(slack))
    low, high = 0, 1
    while monte_carlo_bound(error, high, delta=delta) > error + slack:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if monte_carlo_bound(error, middle, delta=delta) > error + slack:
            low = middle
        else:
            high = middle
    return high
