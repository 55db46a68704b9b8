"""Numbers as text: in tables, in sentences and on axes."""

from __future__ import annotations

import math

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
"""Digits of an exponent."""


def short(value: float | None, digits: int = 4) -> str:
    """A number with ``digits`` significant digits; very large and small ones with a power of ten.

    >>> short(0.02), short(300.0), short(2e-5), short(1e7), short(0.0), short(-0.5), short(12345.6)
    ('0.02', '300', '2·10⁻⁵', '10⁷', '0', '−0.5', '12,346')
    >>> short(None), short(float("inf")), short(float("nan"))
    ('–', '∞', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if value < 0:
        return f"−{short(-value, digits)}"
    if math.isinf(value):
        return "∞"
    if value == 0 or 1e-3 <= value < 1e5:
        return f"{value:,.{digits}g}" if value < 10**digits else f"{value:,.0f}"
    power = math.floor(math.log10(value) + 1e-9)
    front = f"{value / 10.0**power:.{digits}g}"
    tens = f"10{str(power).translate(RAISED)}"
    return tens if front == "1" else f"{front}·{tens}"


def percent(share: float | None) -> str:
    """A share as a percentage.

    >>> percent(0.1234), percent(None)
    ('12.34 %', '–')
    """
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.2f} %"


def plus_minus(value: float, stderr: float, *, keep: bool = False) -> str:
    """Value and error to the same decimal, that of the error's second significant digit.

    A value without an error has six significant digits (``keep`` keeps zeros at their end), and so
    has one whose error is beyond the digits that anyone reads.

    >>> plus_minus(12.34567, 0.0123), plus_minus(2.0, 0.0), plus_minus(5.6e-7, 1.2e-9)
    ('12.346 ± 0.012', '2', '(5.600 ± 0.012)·10⁻⁷')
    >>> plus_minus(7.773191, 9e-6)
    '7.77319 ± 9·10⁻⁶'
    """
    if not math.isfinite(value) or not math.isfinite(stderr):
        return _minus(f"{value:.6g} ± {stderr:g}")
    if 0 < stderr < 1e-5 * abs(value):
        error = plus_minus(float(f"{stderr:.1g}"), 0.0)
        return f"{plus_minus(value, 0.0, keep=True)} ± {error}"
    size = max(abs(value), stderr)
    power = math.floor(math.log10(size)) if size else 0
    scale = 1.0 if -4 <= power < 6 else 10.0**power
    if stderr == 0:
        text = f"{value / scale:{'#' if keep else ''}.6g}"
    else:
        decimals = min(max(1 - math.floor(math.log10(stderr / scale)), 0 if scale == 1 else 1), 12)
        text = f"{value / scale:.{decimals}f} ± {stderr / scale:.{decimals}f}"
    if scale == 1:
        return _minus(text)
    exponent = str(power).translate(RAISED)
    return _minus(f"({text})·10{exponent}" if stderr else f"{text}·10{exponent}")


def _minus(text: str) -> str:
    return text.replace("-", "−")
