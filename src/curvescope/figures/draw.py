"""Pictures of the catalog, from data to a figure.

One width for all, so that letters have the same size on a page whatever the number of columns: a
figure is as wide as a page, panels share it. Legends lie below the panels, never on the data; one
serves all panels where a label means the same in each.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Literal

from curvescope._numbers import short
from curvescope.figures import axes as scales
from curvescope.figures import legends, style
from curvescope.figures.model import Curve, Image, Panel, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.6
"""Of a figure, in inches."""
_HEIGHTS = {1: 3.2, 2: 2.75, 3: 2.2}  # of a panel, by columns; 1.9 beyond
_LETTER = 0.075  # inches, of labels and titles on average
_LINE = 0.19  # inches, of a line of a legend
_FEW = 12  # points of a line that are marked
_MARKERS = "o^sDv"
_DASHES = {"": "-", "dashed": "--", "dotted": ":"}


def draw(picture: Picture, *, title: str = "") -> Figure:
    """All panels of a picture, under its own title or, where it has none, under ``title``.

    >>> squares = Curve.of("squares", None, [1.0, 4.0])
    >>> figure = draw(Picture("p", "", (Panel(xlabel="n", curves=(squares,)),)), title="Numbers")
    >>> figure.axes[0].get_xlabel(), len(figure.axes[0].lines), figure.get_suptitle()
    ('n', 1, 'Numbers')
    """
    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    shared = legends.shared(picture)
    lines = legends.lines(picture, WIDTH if shared else WIDTH / columns, shared=shared)
    height = _HEIGHTS.get(columns, 1.9) + (0 if shared else _LINE * lines)
    figure, grid = style.panels(rows, columns, width=WIDTH / columns, height=height)
    if shared:
        figure.set_size_inches(WIDTH, height * rows + _LINE * lines)
    places = [axes for row in grid for axes in row]
    for place, (axes, panel) in enumerate(zip(places, picture.panels, strict=False)):
        _panel(axes, panel, figure)
        _words(axes, picture, place, columns)
        if not shared:
            legends.below(axes)
    for axes in places[len(picture.panels) :]:
        axes.set_axis_off()
    if shared:
        legends.under(figure, places)
    named = style.pretty(picture.title or title)
    if named:
        figure.suptitle(named, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
    return figure


def draw_panel(panel: Panel, axes: Axes, *, title: str = "") -> None:
    """One panel on given axes, with its legend."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    _panel(axes, panel, figure)
    axes.set(xlabel=style.pretty(panel.xlabel), ylabel=style.pretty(_ylabel(panel)))
    style.finish(axes, style.pretty(title or panel.title))


def color_of(place: int, curve: Curve) -> int:
    """The index of a curve's color, and of its marker."""
    return place if curve.color is None else curve.color


def _panel(axes: Axes, panel: Panel, figure: Figure) -> None:
    if panel.note:
        axes.text(0.5, 0.5, style.pretty(panel.note), transform=axes.transAxes, ha="center",
                  va="center", fontsize=8, color=style.GRAY, wrap=True)  # fmt: skip
    if panel.image is not None:
        image = panel.image
        rows, columns = len(image.values), len(image.values[0])
        heat_map = axes.imshow(
            image.values, vmin=image.low, vmax=image.high, cmap="magma", interpolation="nearest",
            aspect="auto", extent=(0.5, columns + 0.5, rows + 0.5, 0.5),  # counted from 1
        )  # fmt: skip
        axes.grid(visible=False)
        if image.rows and image.columns:
            _entries(axes, image)
        bar = figure.colorbar(heat_map, ax=axes, shrink=0.9, label=image.label or None)
        bar.ax.tick_params(labelsize=7)
    elif not panel.curves:
        axes.set(xticks=[], yticks=[])
        return
    for place, curve in enumerate(panel.curves):
        _curve(axes, curve, color_of(place, curve))
    if panel.image is None:
        scales.scale(axes, panel)
    else:
        scales.counted(axes, panel.image)
    for label, x in (panel.lines or {}).items():
        _line(axes, label, x)
    if panel.lines and panel.ylim is None and panel.yscale == "linear":
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.12 * (high - low))  # room for the words at the lines


def _entries(axes: Axes, image: Image) -> None:
    """The numbers of a table in their cells, in black or white."""
    middle = (image.low + image.high) / 2
    for row, values in enumerate(image.values, 1):
        for column, value in enumerate(values, 1):
            color = "black" if value > middle else "white"
            if math.isfinite(value):
                axes.text(
                    column, row, short(value, 2), ha="center", va="center", fontsize=7, color=color
                )


def _words(axes: Axes, picture: Picture, place: int, columns: int) -> None:
    """Labels and title; labels that are the same everywhere stand at the edges alone."""
    panel, panels = picture.panels[place], picture.panels
    ylabels = [_ylabel(each) for each in panels]
    bottom = place + columns >= len(panels)
    width, height = WIDTH / columns - 0.5, _HEIGHTS.get(columns, 1.9) - 0.8
    said = {ylabels[place], panel.xlabel, f"{ylabels[place]}s"}
    title = "" if panel.title in said else panel.title
    style.finish(axes, _broken(title, width), legend=False)
    if not panel.curves and panel.image is None:
        return
    if bottom or len({each.xlabel for each in panels}) > 1:
        axes.set_xlabel(_broken(panel.xlabel, width))
    if place % columns == 0 or len(set(ylabels)) > 1:
        axes.set_ylabel(_broken(ylabels[place], height))


def _broken(text: str, width: float) -> str:
    """The text in lines that are no longer than ``width`` inches.

    >>> _broken("eigenvalue without class means", 1.4).splitlines()
    ['eigenvalue without', 'class means']
    """
    return "\n".join(textwrap.wrap(style.pretty(text), max(8, int(width / _LETTER))))


def _ylabel(panel: Panel) -> str:
    """The label of the vertical axis; the title where there is none, unless rows have names."""
    if panel.image is not None and panel.image.rows:
        return panel.ylabel
    return panel.ylabel or ("" if panel.note and not panel.curves else panel.title)


def _line(axes: Axes, label: str, x: float) -> None:
    """A vertical line with its name beside its upper end, on the side with more room."""
    axes.axvline(x, color=style.GRAY, linewidth=0.9, linestyle="--")
    low, high = (axes.transData.transform((side, 0))[0] for side in axes.get_xlim())
    right = (axes.transData.transform((x, 0))[0] - low) / (high - low) > 0.6
    axes.annotate(
        label, xy=(x, 1.0), xycoords=("data", "axes fraction"), xytext=(-3 if right else 3, -1),
        textcoords="offset points", ha="right" if right else "left", va="top", fontsize=7.5,
        color=style.GRAY,
    )  # fmt: skip


def _curve(axes: Axes, curve: Curve, index: int) -> None:
    label = style.pretty(curve.label) or None
    color = style.CYCLE[index % len(style.CYCLE)]
    marker = _MARKERS[index // len(style.CYCLE) % len(_MARKERS)]
    if curve.kind == "points":
        axes.plot(
            curve.x, curve.y, linestyle="none", marker=marker, markersize=3, color=color,
            label=label, zorder=3,
        )  # fmt: skip
        if curve.low is not None and curve.high is not None:
            axes.vlines(curve.x, curve.low, curve.high, color=color, linewidth=0.8)
        return
    if curve.kind == "bars":
        width = 0.8 * min((b - a for a, b in zip(curve.x, curve.x[1:], strict=False)), default=1.0)
        axes.bar(curve.x, curve.y, width=width, color=color, alpha=0.45, label=label)
        return
    if curve.kind == "marks":
        for x in curve.x:
            axes.axvline(x, ymax=0.06, color=color, linewidth=0.9)
        axes.plot([], [], marker="|", linestyle="none", color=color, label=label)
        return
    if curve.kind == "filled":
        axes.fill_between(
            curve.x, curve.y, step="post", color=color, alpha=0.3, linewidth=0, label=label
        )
        return
    step: Literal["post"] | None = "post" if curve.kind == "steps" else None
    if curve.low is not None and curve.high is not None:
        axes.fill_between(
            curve.x, curve.low, curve.high, color=color, alpha=0.22, linewidth=0, step=step
        )
    axes.plot(
        curve.x, curve.y, color=color, label=label,
        drawstyle="steps-post" if step else "default", linestyle=_DASHES[curve.dash],
        linewidth=style.LINE * curve.width,
        marker=marker if 2 < len(curve.x) <= _FEW and not step else None, markersize=3,
    )  # fmt: skip
