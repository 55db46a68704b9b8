"""One layer's Hessian beside its Kronecker approximation (DH fig. 2, 3, 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from curvescope.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from curvescope.experiments.stages.layers import LayerFindings


def layer(found: LayerFindings) -> Figure:
    """Eigenvalues, overlap with rank-one ratios, and the four correspondence matrices."""
    figure, panels = style.panels(2, 3, width=3.6, height=3.0)
    _eigenvalues(panels[0][0], found)
    _shares(panels[1][0], found)
    for row, side in enumerate(("input", "output")):
        factor = {"input": "E[xxᵀ]", "output": "E[M]"}[side]
        for column, kind in enumerate(("true", "approximate"), 1):
            axes = panels[row][column]
            heat_map(axes, found.correspondences[f"{kind} {side}"])
            axes.set(xlabel="eigenvector of the layer", ylabel=f"of {factor}")
            words = "true" if kind == "true" else "Kronecker"
            style.finish(axes, f"{words} against {factor}", legend=False)
    figure.suptitle(found.name, fontsize=10)
    return figure


def heat_map(axes: Axes, matrix: Tensor) -> None:
    """A matrix of shares between 0 (dark) and 1 (bright).

    >>> figure, [[axes]] = style.panels()
    >>> import torch
    >>> heat_map(axes, torch.eye(3))
    >>> axes.images[0].get_clim()
    (0.0, 1.0)
    """
    rows, columns = matrix.shape
    axes.grid(False)
    axes.imshow(
        matrix.numpy(),
        cmap="cividis",
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, columns + 0.5, rows + 0.5, 0.5),
    )


def _eigenvalues(axes: Axes, found: LayerFindings) -> None:
    index = range(1, len(found.true) + 1)
    for colour, name, values in (
        (style.BLUE, "true", found.true),
        (style.VERMILION, "Kronecker", found.approximate),
    ):
        axes.plot(index, values.tolist(), marker="o", markersize=2.5, color=colour, label=name)
    if bool((found.true > 0).all()):
        axes.set_yscale("log")
    axes.set(xlabel="index", ylabel="eigenvalue")
    style.finish(axes, "top eigenvalues")


def _shares(axes: Axes, found: LayerFindings) -> None:
    index = range(1, len(found.overlap) + 1)
    axes.plot(index, found.overlap.tolist(), color=style.BLUE, label="overlap at k")
    axes.plot(
        index, found.ratio.tolist(), ".", color=style.VERMILION, label="rank-one ratio of the k-th"
    )
    axes.set(xlabel="k", ylabel="share", ylim=(0, 1.05))
    style.finish(axes, "overlap and rank one")
