"""Self-checks: whether two independent ways to compute one number agree.

Two estimates agree when their difference is within four standard errors. A standard error from a
few probes is itself uncertain, so the four are widened to the quantile of Student's distribution
that has the same tail (6·10⁻⁵): a sound run fails about one check in sixteen thousand where the
samples are about normal, which they are once the outliers have been taken out. That is an alarm's
level, not an interval's: :meth:`curvescope.spectra.estimate.Estimate.interval` covers any spectrum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erfc, hypot, sqrt

from curvescope._numbers import plus_minus
from curvescope.spectra.estimate import Estimate, student

_DEVIATIONS = 4.0


@dataclass(frozen=True)
class Number:
    """A side of a check that was computed from other numbers, and is no estimate itself.

    ``stderr`` is 0 where it is exact up to rounding; ``probes`` is one more than the degrees of
    freedom of ``stderr``.
    """

    value: float
    stderr: float = 0.0
    probes: int = 0


@dataclass(frozen=True)
class Check:
    """A statement with its numbers, and whether it holds."""

    statement: str
    passed: bool

    @property
    def verdict(self) -> str:
        """One word for a table."""
        return "agree" if self.passed else "disagree"


def agree(
    what: str,
    ways: Mapping[str, Number | Estimate[float]],
    *,
    rounding: float = 1e-4,
    scale: float = 0.0,
    slack: float = 0.0,
) -> Check:
    """Check that two ways to compute a number agree within their errors.

    Args:
        what: The quantity, as ``"tr H"``.
        ways: The two numbers, by words for how each was computed.
        rounding: A relative difference that is accepted in any case: the arithmetic's.
        scale: The size of the terms whose cancellation may have lost digits.
        slack: A difference that is accepted in any case, such as the residuals of eigenvalues.

    >>> check = agree("tr H", {"from the density": Number(10.31, 0.05, 8),
    ...                        "by Hutchinson": Number(10.28, 0.04, 32)})
    >>> check.statement
    'tr H from the density 10.310 ± 0.050, by Hutchinson 10.280 ± 0.040'
    >>> check.verdict, agree("tr H", {"a": Number(1.0, 0.01, 32), "b": Number(2.0)}).verdict
    ('agree', 'disagree')
    """
    (_, a), (_, b) = ways.items()
    allowed = reach(a, b) * hypot(a.stderr, b.stderr)
    allowed += rounding * max(abs(a.value), abs(b.value), scale) + slack
    listed = ", ".join(
        f"{source} {plus_minus(number.value, number.stderr)}" for source, number in ways.items()
    )
    return Check(f"{what} {listed}", abs(a.value - b.value) <= allowed)


def reach(a: Number | Estimate[float], b: Number | Estimate[float]) -> float:
    """The largest difference, in standard errors, at which two numbers still agree.

    Student's quantile, whose degrees of freedom are Welch's for the difference of two means.

    >>> reach(Number(1.0), Number(2.0, 0.1, 10**6))
    4.0
    >>> reach(Number(1.0), Number(2.0, 0.1, 10))
    7.0
    """
    parts = [
        (number.stderr**2, number.probes - 1)
        for number in (a, b)
        if 0 < number.stderr < float("inf") and number.probes > 1
    ]
    spread = sum(part**2 / degrees for part, degrees in parts)
    if spread == 0:
        return _DEVIATIONS
    degrees = sum(part for part, _ in parts) ** 2 / spread
    return round(student(erfc(_DEVIATIONS / sqrt(2)) / 2, degrees), 2)
