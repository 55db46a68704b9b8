"""Sharpness against generalisation for several runs: FF's finding at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from curvescope._checks import CurvescopeError
from curvescope.plots import style
from curvescope.sharpness.comparison import PLAIN, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = {"eval": "o", "train": "^"}


def against_generalisation(
    compared: Comparison, figure: str = "test error", *, measures: Sequence[str] = PLAIN
) -> Figure:
    """A panel for each measure: one point for each run, the flatter to the left, the better below.

    Where points rise to the left, sharper runs generalise better, as FF find. Titles have Kendall's
    τ for each mode of the batch norms; marks differ by mode, colours by run.

    Args:
        compared: What :func:`curvescope.sharpness.compare_reports` returned.
        figure: A generalisation figure of it.
        measures: Columns of it.

    Raises:
        CurvescopeError: If a column is not there, or no run has the figure.
    """
    for name in (figure, *measures):
        if name not in compared.table:
            known = ", ".join(compared.table)
            msg = f"against_generalisation: there is no column {name!r}; columns are {known}"
            raise CurvescopeError(msg)
    if all(value is None for value in compared.table[figure]):
        msg = f"against_generalisation: no run has a {figure}; measure with test data"
        raise CurvescopeError(msg)
    drawn, [panels] = style.panels(1, len(measures), width=3.6)
    for axes, measure in zip(panels, measures, strict=True):
        _points(axes, compared, measure, figure)
        style.finish(axes, _title(compared, measure, figure), legend=axes is panels[-1])
    panels[0].set_ylabel(figure)
    return drawn


def _points(axes: Axes, compared: Comparison, measure: str, figure: str) -> None:
    shown = []
    for i, (name, mode) in enumerate(zip(compared.runs, compared.modes, strict=True)):
        x, y = compared.table[measure][i], compared.table[figure][i]
        if x is None or y is None:
            continue
        shown.append(x.value)
        axes.errorbar(
            x.value,
            y.value,
            xerr=x.stderr if x.stderr else None,
            marker=_MARKERS.get(mode, "o"),
            linestyle="",
            color=style.CYCLE[i % len(style.CYCLE)],
            label=name,
        )
    axes.set_xlabel(measure)
    if shown and min(shown) > 0 and max(shown) > 30 * min(shown):
        axes.set_xscale("log")


def _title(compared: Comparison, measure: str, figure: str) -> str:
    found = [c for c in compared.correlations if (c.measure, c.generalisation) == (measure, figure)]
    modes = len({c.mode for c in found}) > 1
    return ", ".join(f"τ = {c.kendall:+.2g}" + (f" ({c.mode})" if modes else "") for c in found)
