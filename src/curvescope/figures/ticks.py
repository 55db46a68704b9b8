"""Where the numbers on an axis stand, for both ways of drawing; the page's script has the same."""

from __future__ import annotations

import math

_MARKS = ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3))


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
    """Ticks of an axis of decimal logarithms: powers of ten, or as many marks in each as fit.

    Both the ends and the ticks are logarithms.

    >>> decades(-3.0, 0.5, most=4), decades(-9.0, 0.0, most=5)
    ([-3.0, -2.0, -1.0, 0.0], [-8.0, -6.0, -4.0, -2.0, 0.0])
    >>> [round(10**u, 9) for u in decades(0.0, 1.0, most=4)]
    [1.0, 2.0, 5.0, 10.0]
    >>> [round(10**u, 9) for u in decades(math.log10(1.1), math.log10(1.9), most=6)]
    [1.2, 1.4, 1.6, 1.8]
    """
    powers = range(math.floor(low), math.floor(high) + 1)
    for marks in _MARKS if high - low <= 2.5 else ():
        inside = [k + math.log10(m) for k in powers for m in marks]
        inside = [u for u in inside if low - 1e-9 <= u <= high + 1e-9]
        if 1 < len(inside) <= most:
            return inside
    whole = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if len(whole) > 1:
        stride = math.ceil(len(whole) / most)
        return [float(k) for k in whole if k % stride == 0]
    return [math.log10(v) for v in linear(10.0**low, 10.0**high, most=most) if v > 0]
