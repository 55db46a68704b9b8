"""Any result on matplotlib axes, for notebooks and scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curvescope.errors import CurvescopeError
from curvescope.figures import monitoring as monitoring  # registers its picture
from curvescope.figures import results
from curvescope.figures import stages as stages  # registers its pictures
from curvescope.figures import training as training  # registers its pictures
from curvescope.figures.draw import draw, draw_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(result: object, *, axes: Axes | None = None, title: str = "") -> Figure:
    """Draw a result of the library, or a mapping of names to results of one kind.

    Densities of several matrices share one pair of axes (``plot({"H": h, "G": g})``); other results
    have a panel for each part.

    Args:
        result: A result of a function of the library.
        axes: Where to draw a result that has a single panel; by default on a new figure.
        title: Above everything.

    Returns:
        The figure; notebooks show it, ``figure.savefig(path)`` writes it.

    Raises:
        CurvescopeError: If there is no picture of such a result, if matplotlib is missing, or if
            ``axes`` is given for a result with several panels.

    >>> import torch
    >>> import curvescope as cs
    >>> A = cs.Diagonal(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    >>> figure = plot(cs.eigenpairs(A, 2, generator=torch.Generator().manual_seed(0)))
    >>> figure.axes[0].get_ylabel()
    'eigenvalue'
    """
    made = results.picture(result)
    if axes is None:
        return draw(made, title=title)
    if len(made.panels) != 1:
        rule = f"a {type(result).__name__} has {len(made.panels)} panels"
        remedy = "leave `axes` out to get a figure with all of them"
        raise CurvescopeError("plot(axes)", rule, remedy=remedy)
    draw_panel(made.panels[0], axes, title=title)
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure
