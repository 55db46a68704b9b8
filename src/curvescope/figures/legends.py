"""Legends of the catalog's pictures: below the panels, and one for all where one will do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from curvescope.figures import style
from curvescope.figures.model import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTER = 0.062  # inches, of the legend's letters on average
_HANDLE = 0.55  # inches, of a line with the space around it
_MARGIN = 0.6  # inches, of a panel beside its axes


def shared(picture: Picture) -> bool:
    """Whether every label has the same look wherever it appears, and several panels have one.

    >>> from curvescope.figures.model import Curve, Panel
    >>> a, b = (Panel(curves=(Curve.of(name, None, [1, 2]),)) for name in "ab")
    >>> shared(Picture("p", "", (a, a))), shared(Picture("p", "", (a, b)))
    (True, False)
    """
    looks: dict[str, tuple[int, str]] = {}
    owners: dict[tuple[int, str], str] = {}
    for panel in picture.panels:
        for place, curve in enumerate(panel.curves):
            if not curve.label:
                continue
            look = (place if curve.color is None else curve.color, curve.kind)
            if looks.setdefault(curve.label, look) != look:
                return False
            if owners.setdefault(look, curve.label) != curve.label:
                return False
    return len(picture.panels) > 1 and bool(looks)


def lines(picture: Picture, width: float, *, shared: bool) -> int:
    """How many lines the legend needs; of several legends the longest."""
    named = [[curve.label for curve in p.curves if curve.label] for p in picture.panels]
    if shared:
        named = [list(dict.fromkeys(label for labels in named for label in labels))]
    room = width if shared else width - _MARGIN
    return max((-(-len(labels) // _columns(labels, room)) for labels in named if labels), default=0)


def below(axes: Axes) -> None:
    """A panel's own legend, under its axis."""
    from matplotlib.transforms import ScaledTranslation

    handles, labels = axes.get_legend_handles_labels()
    figure: Any = axes.get_figure()
    if not labels or figure is None:
        return
    spec = axes.get_subplotspec()
    columns = 1 if spec is None else spec.get_gridspec().ncols
    room = figure.get_size_inches()[0] / columns - _MARGIN
    words = axes.get_xlabel()
    down = ScaledTranslation(0, -0.27 - 0.15 * (1 + words.count("\n")), figure.dpi_scale_trans)
    axes.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0, 0), borderaxespad=0, frameon=False,
        bbox_transform=axes.transAxes + down, fontsize=style.LEGEND, ncols=_columns(labels, room),
    )  # fmt: skip


def under(figure: Figure, places: list[Axes]) -> None:
    """One legend for all panels, under the figure."""
    handles: dict[str, Any] = {}
    for axes in places:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    room = figure.get_size_inches()[0]
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", frameon=False,
        fontsize=style.LEGEND, ncols=_columns(list(handles), room),
    )  # fmt: skip


def _columns(labels: list[str], room: float) -> int:
    """As many as fit beside each other.

    >>> _columns(["train mode", "eval mode"], 8.0), _columns(["a very long label" * 3] * 3, 4.0)
    (2, 1)
    """
    widest = _HANDLE + _LETTER * max(len(label) for label in labels)
    return max(1, min(len(labels), int(room / widest)))
