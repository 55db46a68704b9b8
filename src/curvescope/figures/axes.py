"""Scales and ticks of the catalog's pictures: every axis has numbers that can be read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from curvescope._numbers import short
from curvescope.figures import ticks
from curvescope.figures.model import Image, Panel

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
            _linear(axis, whole=name == "x" and panel.whole, few=few)


def counted(axes: Axes, image: Image) -> None:
    """Whole numbers on both axes of a heat map, or the names of its rows and columns."""
    for axis, names in ((axes.xaxis, image.columns), (axes.yaxis, image.rows)):
        if names:
            axis.set_ticks(range(1, len(names) + 1), names)
        else:
            _linear(axis, whole=True, few=True)


def _logarithmic(axis: Axis, *, few: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(FixedLocator(_decades(low, high, most=4 if few else 7)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(NullFormatter())


def _decades(low: float, high: float, *, most: int) -> list[float]:
    return [10.0**u for u in ticks.decades(math.log10(low), math.log10(high), most=most)]


def _both_sides(axis: Axis, linear: float) -> None:
    """Zero, the ends of the linear part, and decades beyond."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    places = [0.0, linear, -linear]
    for sign, side in ((-1, -low), (1, high)):
        if side > 5 * linear:
            first, last = math.ceil(math.log10(2.2 * linear)), math.floor(math.log10(side))
            decades = [10.0**k for k in range(first, last + 1)]
            places += [sign * x for x in decades or _decades(3 * linear, side, most=3)[-1:]]
    ticks = sorted({float(f"{x:.3g}") for x in places if low <= x <= high})
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _linear(axis: Axis, *, whole: bool, few: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5 if few else 8, integer=whole, steps=[1, 2, 5, 10]))


def _columns(axes: Axes) -> int:
    spec = axes.get_subplotspec()
    return 1 if spec is None else int(spec.get_gridspec().ncols)
