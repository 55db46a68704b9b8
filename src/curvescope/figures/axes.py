"""Scales and ticks of the catalog's pictures: every axis has numbers that can be read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from curvescope.figures.model import Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_NARROW = 2.6  # inches; narrower axes get fewer numbers


def scale(axes: Axes, panel: Panel) -> None:
    """The panel's scales, limits and ticks, once everything is drawn."""
    if panel.xscale == "symlog" and panel.linear is not None:
        axes.set_xscale("symlog", linthresh=panel.linear)
    else:
        axes.set_xscale(panel.xscale)
    axes.set_yscale(panel.yscale)
    if panel.ylim is not None:
        axes.set_ylim(*panel.ylim)
    figure: Any = axes.get_figure()
    few = figure.get_size_inches()[0] / _columns(axes) < _NARROW
    for name, axis, kind in (("x", axes.xaxis, panel.xscale), ("y", axes.yaxis, panel.yscale)):
        if kind == "log":
            _logarithmic(axis, few=few)
        elif kind == "symlog" and name == "x" and panel.linear is not None:
            _both_sides(axis, panel.linear)
        elif kind == "linear":
            _linear(axis, whole=name == "x" and _whole(panel), few=few)


def counted(axes: Axes) -> None:
    """Whole numbers on both axes of a heat map."""
    for axis in (axes.xaxis, axes.yaxis):
        _linear(axis, whole=True, few=True)


def plain(value: float) -> str:
    """A number as one would write it; with a power of ten where it is very large or small.

    >>> plain(0.02), plain(300.0), plain(2e-5), plain(1e7), plain(0.0)
    ('0.02', '300', '$2·10^{-5}$', '$10^{7}$', '0')
    """
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.6g}"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    factor = f"{value / 10.0**power:.3g}"
    return f"$10^{{{power}}}$" if factor == "1" else f"${factor}·10^{{{power}}}$"


def ticks(low: float, high: float, *, most: int) -> list[float]:
    """Places for numbers on a logarithmic axis: decades, or 1, 2, 5 of each where there are few.

    >>> ticks(0.3, 40.0, most=6)
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    >>> ticks(1e-9, 1.0, most=5)
    [1e-09, 1e-07, 1e-05, 0.001, 0.1]
    >>> ticks(0.4, 0.9, most=6), ticks(1.1, 1.9, most=6)
    ([0.4, 0.5, 0.6, 0.7, 0.8, 0.9], [1.2, 1.4, 1.6, 1.8])
    """
    if high < 3 * low:
        return _evenly(low, high, most)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    inside = [k for k in range(first, last + 1) if low <= 10.0**k * (1 + 1e-9) <= high * (1 + 2e-9)]
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 6, 8), (1, 2, 5), (1, 3)):
        found = [
            float(f"{s * 10.0**k:.6g}")
            for k in range(first, last + 1)
            for s in steps
            if low * (1 - 1e-9) <= s * 10.0**k <= high * (1 + 1e-9)
        ]
        if len(found) <= most:
            return found if len(found) > len(inside) else [10.0**k for k in inside]
    stride = math.ceil(len(inside) / most)
    return [10.0**k for k in inside[::stride]]


def _evenly(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    for step in (power * factor for factor in (1, 2, 5, 10, 20, 50)):
        begin, end = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if end - begin < most:
            return [float(f"{k * step:.6g}") for k in range(begin, end + 1)]
    return []


def _logarithmic(axis: Axis, *, few: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(FixedLocator(ticks(low, high, most=4 if few else 7)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_formatter(NullFormatter())


def _both_sides(axis: Axis, linear: float) -> None:
    """Zero, the ends of the linear part, and decades beyond."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    places = [0.0, linear, -linear]
    for sign, side in ((-1, -low), (1, high)):
        if side > 5 * linear:
            first, last = math.ceil(math.log10(2.2 * linear)), math.floor(math.log10(side))
            decades = [10.0**k for k in range(first, last + 1)]
            places += [sign * x for x in decades or ticks(3 * linear, side, most=3)[-1:]]
    shown = sorted({float(f"{x:.3g}") for x in places if low <= x <= high})
    axis.set_major_locator(FixedLocator(shown))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _linear(axis: Axis, *, whole: bool, few: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5 if few else 8, integer=whole, steps=[1, 2, 5, 10]))


def _whole(panel: Panel) -> bool:
    """Whether everything stands at whole numbers: epochs, places, dimensions."""
    return all(x == round(x) for curve in panel.curves for x in curve.x)


def _columns(axes: Axes) -> int:
    spec = axes.get_subplotspec()
    return 1 if spec is None else int(spec.get_gridspec().ncols)
