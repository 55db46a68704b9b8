"""Self-checks: two independent ways to one number, and whether they agree.

Two estimates agree when their difference is within four standard errors. A standard error from a
few probes is itself uncertain, so the four are widened to the quantile of Student's distribution
that has the same tail (6·10⁻⁵): a sound run fails about one check in sixteen thousand where the
samples are about normal, which they are once the outliers have been taken out. That is an alarm's
level, not an interval's: :meth:`curvescope.spectra.estimate.Estimate.interval` covers any spectrum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, floor, hypot, isfinite, log10, sqrt

from curvescope._checks import AnyFloat
from curvescope.spectra.estimate import student

_DEVIATIONS = 4.0


@dataclass(frozen=True)
class Number:
    """A value with its standard error (0: exact up to rounding) over so many probes."""

    value: AnyFloat
    stderr: AnyFloat = 0.0
    probes: int = 0

    def scaled(self, factor: float) -> Number:
        """The number times an exact factor."""
        return Number(self.value * factor, self.stderr * abs(factor), self.probes)

    def __str__(self) -> str:
        return plus_minus(self.value, self.stderr)


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
    ways: dict[str, Number],
    *,
    rounding: float = 1e-4,
    scale: float = 0.0,
    slack: float = 0.0,
) -> Check:
    """Whether two ways to the same number agree within their errors.

    Args:
        what: The quantity, as ``"tr H"``.
        ways: Two numbers under the words that say where they come from.
        rounding: A relative difference that is accepted in any case: the arithmetic's.
        scale: How large the numbers were that the result may have canceled from.
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
    listed = ", ".join(f"{source} {number}" for source, number in ways.items())
    return Check(f"{what} {listed}", abs(a.value - b.value) <= allowed)


def reach(a: Number, b: Number) -> float:
    """How many standard errors two numbers may be apart.

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


def plus_minus(value: float, stderr: float, *, keep: bool = False) -> str:
    """Value and error to the same decimal, that of the error's second significant digit.

    A value without an error has six significant digits (``keep`` keeps zeros at their end), and so
    has one whose error is beyond the digits that anyone reads.

    >>> plus_minus(12.34567, 0.0123), plus_minus(2.0, 0.0), plus_minus(5.6e-7, 1.2e-9)
    ('12.346 ± 0.012', '2', '(5.600 ± 0.012)·10⁻⁷')
    >>> plus_minus(7.773191, 9e-6)
    '7.77319 ± 9·10⁻⁶'
    """
    if not isfinite(value) or not isfinite(stderr):
        return _minus(f"{value:.6g} ± {stderr:g}")
    if 0 < stderr < 1e-5 * abs(value):
        error = plus_minus(float(f"{stderr:.1g}"), 0.0)
        return f"{plus_minus(value, 0.0, keep=True)} ± {error}"
    size = max(abs(value), stderr)
    power = floor(log10(size)) if size else 0
    scale = 1.0 if -4 <= power < 6 else 10.0**power
    if stderr == 0:
        text = f"{value / scale:{'#' if keep else ''}.6g}"
    else:
        decimals = min(max(1 - floor(log10(stderr / scale)), 0 if scale == 1 else 1), 12)
        text = f"{value / scale:.{decimals}f} ± {stderr / scale:.{decimals}f}"
    if scale == 1:
        return _minus(text)
    exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return _minus(f"({text})·10{exponent}" if stderr else f"{text}·10{exponent}")


def _minus(text: str) -> str:
    return text.replace("-", "−")
