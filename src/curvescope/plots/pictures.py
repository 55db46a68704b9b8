"""Pictures of the catalogue, from data to a figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from curvescope.catalogue.pictures import Curve, Panel, Picture
from curvescope.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(picture: Picture) -> Figure:
    """All panels of a picture.

    >>> squares = Curve.of("squares", None, [1.0, 4.0])
    >>> figure = draw(Picture("p", "", (Panel(xlabel="n", curves=(squares,)),)))
    >>> figure.axes[0].get_xlabel(), len(figure.axes[0].lines)
    ('n', 1)
    """
    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    figure, grid = style.panels(rows, columns)
    places = [axes for row in grid for axes in row]
    for axes, panel in zip(places, picture.panels, strict=False):
        _panel(axes, panel, figure)
    for axes in places[len(picture.panels) :]:
        axes.set_axis_off()
    return figure


def _panel(axes: Axes, panel: Panel, figure: Figure) -> None:
    from matplotlib.ticker import MaxNLocator

    if panel.image is not None:
        image = panel.image
        rows, columns = len(image.values), len(image.values[0])
        shown = axes.imshow(
            image.values, vmin=image.low, vmax=image.high, cmap="magma", interpolation="nearest",
            aspect="auto", extent=(0.5, columns + 0.5, rows + 0.5, 0.5),  # counted from 1
        )  # fmt: skip
        axes.grid(visible=False)
        figure.colorbar(shown, ax=axes, shrink=0.9)
    for place, curve in enumerate(panel.curves):
        index = place if curve.colour is None else curve.colour
        _curve(axes, curve, style.CYCLE[index % len(style.CYCLE)])
    for label, x in (panel.lines or {}).items():
        axes.axvline(x, color=style.GREY, linewidth=0.9, linestyle="--", label=label)
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
    if panel.image is None:
        axes.set(xscale=panel.xscale, yscale=panel.yscale)
    if panel.image is not None or (panel.xscale == "linear" and _counted(panel)):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if panel.image is not None:
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if panel.ylim is not None:
        axes.set_ylim(*panel.ylim)
    style.finish(axes, panel.title)


def _counted(panel: Panel) -> bool:
    """Whether everything stands at whole numbers: epochs, places, dimensions."""
    return all(x == round(x) for curve in panel.curves for x in curve.x)


def _curve(axes: Axes, curve: Curve, colour: str) -> None:
    label = curve.label or None
    if curve.kind == "points":
        axes.plot(
            curve.x, curve.y, linestyle="none", marker="o", markersize=3, color=colour, label=label
        )
        if curve.low is not None and curve.high is not None:
            axes.vlines(curve.x, curve.low, curve.high, color=colour, linewidth=0.8)
        return
    if curve.kind == "bars":
        width = 0.8 * min((b - a for a, b in zip(curve.x, curve.x[1:], strict=False)), default=1.0)
        axes.bar(curve.x, curve.y, width=width, color=colour, alpha=0.45, label=label)
        return
    step: Literal["post"] | None = "post" if curve.kind == "steps" else None
    if curve.low is not None and curve.high is not None:
        axes.fill_between(
            curve.x, curve.low, curve.high, color=colour, alpha=0.22, linewidth=0, step=step
        )
    drawstyle = "steps-post" if step else "default"
    axes.plot(curve.x, curve.y, color=colour, label=label, drawstyle=drawstyle)
