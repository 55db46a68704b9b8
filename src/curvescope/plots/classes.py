"""Class structure: attributed eigenvalues, knockouts, KFAC and CFAC (TR fig. 5, 8, 10 to 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curvescope.plots import style
from curvescope.structure.outliers import SHARES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from curvescope.experiments.stages.class_layers import ClassLayerFindings, Moment
    from curvescope.experiments.stages.class_structure import ClassFindings

_COLOURS = dict(
    zip(
        SHARES,
        (style.PURPLE, style.BLUE, style.VERMILION, style.ORANGE, style.GREEN),
        strict=True,
    )
)


def attribution(found: ClassFindings, *, most: int = 150) -> Figure:
    """The largest eigenvalues of G by the part that makes most of each; knockouts if known."""
    figure, [panels] = style.panels(1, 2 if len(found.whole) else 1, width=4.6)
    axes, values = panels[0], found.attribution.values[:most]
    makers = found.attribution.maker[:most]
    for name in SHARES:
        chosen = [i for i, maker in enumerate(makers) if maker == name]
        if chosen:
            axes.plot(
                [i + 1 for i in chosen],
                values[chosen].tolist(),
                "o",
                markersize=2.5,
                color=_COLOURS[name],
                label=name,
            )
    axes.axhline(found.attribution.edge, color=style.GREY, linestyle="--", label="edge of the bulk")
    axes.set(yscale="log", xlabel="index", ylabel="eigenvalue of G")
    style.finish(axes, "who makes each eigenvalue")
    if len(found.whole):
        _knockouts(panels[1], found)
    return figure


def _knockouts(axes: Axes, found: ClassFindings) -> None:
    floor = 1e-10 * float(found.whole[0])
    for name, values, colour in (
        ("G", found.whole, style.BLACK),
        *((f"without {part}", v, _COLOURS[part]) for part, v in found.without.items()),
    ):
        positive = values[values > floor]
        axes.plot(range(1, len(positive) + 1), positive.tolist(), color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="index", ylabel="eigenvalue")
    style.finish(axes, "G with a part taken away")


def class_layer(found: ClassLayerFindings) -> Figure:
    """KFAC and CFAC beside the exact block, and the spectra of features and errors."""
    figure, [panels] = style.panels(1, 3)
    for colour, (name, values) in zip(style.CYCLE, found.densities.items(), strict=False):
        panels[0].plot(found.centres.tolist(), values.tolist(), color=colour, label=name)
    panels[0].set(xscale="log", yscale="log", xlabel="eigenvalue", ylabel="density per decade")
    style.finish(panels[0], f"{found.name}: G, KFAC, CFAC")
    for axes, (name, moment) in zip(panels[1:], found.moments.items(), strict=True):
        _scree(axes, moment)
        style.finish(axes, name)
    return figure


def _scree(axes: Axes, moment: Moment) -> None:
    floor = 1e-12 * float(moment.total[0])
    for values, label, marker, colour in (
        (moment.total, "all", "", style.BLUE),
        (moment.class_and_cross, "class and cross", ".", style.GREEN),
        (moment.class_, "class", "o", style.VERMILION),
    ):
        kept = values[values > floor]
        axes.plot(
            range(1, len(kept) + 1),
            kept.tolist(),
            marker=marker or None,
            markersize=3,
            linestyle="-" if label == "all" else "",
            color=colour,
            label=label,
        )
    axes.set(yscale="log", xlabel="index", ylabel="eigenvalue")
