"""Numbers on axes: where ticks stand and how they are written, for every way of drawing."""

from __future__ import annotations

import math

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: float, digits: int = 4) -> str:
    """A number as one would write it; with a power of ten where it is very large or small.

    >>> short(0.02), short(300.0), short(2e-5), short(1e7), short(0.0), short(-0.5)
    ('0.02', '300', '2·10⁻⁵', '10⁷', '0', '−0.5')
    """
    if value < 0:
        return f"−{short(-value, digits)}"
    if value == 0 or 1e-3 <= value < 1e5:
        return f"{value:.{digits}g}" if value < 10**digits else f"{value:.0f}"
    power = math.floor(math.log10(value) + 1e-9)
    front = f"{value / 10.0**power:.{digits}g}"
    tens = f"10{str(power).translate(_RAISED)}"
    return tens if front == "1" else f"{front}·{tens}"


def linear(low: float, high: float, *, most: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about ``most`` of them.

    >>> linear(0.0, 1.0, most=5), linear(-3.0, 4.0, most=4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-2.0, 0.0, 2.0, 4.0])
    """
    raw = (high - low) / max(most, 1.0)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= 0.999 * raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def decades(low: float, high: float, *, most: float) -> list[float]:
    """Ticks of an axis of decimal logarithms: powers of ten, or 1, 2, 5 (or 1 … 9) of each.

    Both the ends and the ticks are logarithms.

    >>> decades(-3.0, 0.5, most=4)
    [-3.0, -2.0, -1.0, 0.0]
    >>> [round(10**u, 9) for u in decades(0.0, 1.0, most=4)]
    [1.0, 2.0, 5.0, 10.0]
    """
    if high - low > 2.5:
        return [u for u in linear(low, high, most=most) if u == int(u)]
    within = (1, 2, 5) if high - low > 0.8 else tuple(range(1, 10))
    powers = range(math.floor(low), math.floor(high) + 1)
    inside = [k + math.log10(m) for k in powers for m in within]
    inside = [u for u in inside if low <= u <= high]
    return inside if len(inside) > 1 else linear(low, high, most=most)
