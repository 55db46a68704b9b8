"""Sharpness against generalization for several runs, at a glance (Granziol 2020)."""

from __future__ import annotations

from collections.abc import Sequence

from curvescope.errors import CurvescopeError
from curvescope.figures.model import Curve, Panel, Picture, Scaling
from curvescope.flatness.comparison import PLAIN, Comparison


def against_generalization(
    compared: Comparison, figure: str = "test error", *, measures: Sequence[str] = PLAIN
) -> Picture:
    """A panel for each measure: one point for each run, the better to the left, the flatter below.

    Where points fall to the right, sharper runs generalize better, as Granziol (2020) finds. Titles
    have Kendall's τ for each mode of the batch norms; whiskers are standard errors.

    Args:
        compared: The result of :func:`curvescope.flatness.compare_reports`.
        figure: A generalization figure of it.
        measures: Columns of it.

    Raises:
        CurvescopeError: If a column is not there, or no run has the figure.
    """
    for name in (figure, *measures):
        if name not in compared.table:
            columns = ", ".join(compared.table)
            rule = f"there is no column {name!r}"
            raise CurvescopeError("against_generalization", rule, remedy=f"columns are {columns}")
    if all(value is None for value in compared.table[figure]):
        rule = f"no run has a {figure}"
        raise CurvescopeError("against_generalization", rule, remedy="measure with test data")
    panels = tuple(_panel(compared, measure, figure) for measure in measures)
    caption = f"Measures of sharpness against the {figure}, a point for each run."
    return Picture("sharpness", caption, panels, columns=len(panels))


def _panel(compared: Comparison, measure: str, figure: str) -> Panel:
    points = []
    for i, (name, mode) in enumerate(zip(compared.runs, compared.modes, strict=True)):
        y, x = compared.table[measure][i], compared.table[figure][i]
        if x is None or y is None:
            continue
        label = f"{name}, {mode}" if len(set(compared.modes)) > 1 else name
        error = y.stderr or 0.0
        low, high = ([y.value - error], [y.value + error]) if error else (None, None)
        points.append(
            Curve.of(label, [x.value], [y.value], low=low, high=high, kind="points", color=i)
        )
    heights = [curve.y[0] for curve in points]
    far = bool(heights) and min(heights) > 0 and max(heights) > 30 * min(heights)
    scale: Scaling = "log" if far else "linear"
    title = _title(compared, measure, figure)
    return Panel(title, figure, measure, tuple(points), yscale=scale)


def _title(compared: Comparison, measure: str, figure: str) -> str:
    chosen = [
        c for c in compared.correlations if (c.measure, c.generalization) == (measure, figure)
    ]
    modes = len({c.mode for c in chosen}) > 1
    return ", ".join(f"τ = {c.kendall:+.2g}" + (f" ({c.mode})" if modes else "") for c in chosen)
