"""Independent models beside each other, factors and logit gradients (DH fig. 5, 6, 18, 20, 21)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from curvescope.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from curvescope.structure.autocorrelation import AutocorrelationStructure
    from curvescope.structure.clustering import Embedding
    from curvescope.structure.correspondence import SingularStructure
    from curvescope.structure.overlap import EigenComparison, PairwiseOverlap
    from curvescope.structure.prediction import OverlapPrediction


def between_models(
    found: PairwiseOverlap, prediction: OverlapPrediction | None = None, *, title: str = ""
) -> Figure:
    """Mean overlap of independent models at every ``k``, with one standard deviation (DH fig. 5).

    A ``prediction`` adds its curve, a line at the number of outputs, and its verdict.

    >>> import torch
    >>> from curvescope.structure.overlap import pairwise_overlap
    >>> figure = between_models(pairwise_overlap([torch.eye(3), torch.eye(3)]))
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [1.0, 1.0, 1.0]
    """
    figure, [[axes]] = style.panels()
    mean, std = found.mean.tolist(), found.std.tolist()
    k = range(1, len(mean) + 1)
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    axes.plot(k, mean, color=style.BLUE, label=f"{len(found.curves)} pairs of models")
    axes.fill_between(k, low, high, color=style.BLUE, alpha=0.22, linewidth=0)
    if prediction is not None:
        curve = prediction.curve[: len(mean)].tolist()
        label = f"expected: {prediction.verdict}"
        axes.plot(range(1, len(curve) + 1), curve, color=style.VERMILION, label=label)
        m = prediction.outputs
        axes.axvline(m, color=style.GREY, linewidth=0.9, linestyle="--", label=f"m = {m}")
    axes.set(xlabel="k", ylabel="overlap")
    axes.set_xlim(0, len(mean) + 1)
    style.finish(axes, title)
    return figure


def comparison(found: EigenComparison, *, title: str = "") -> Figure:
    """Eigenvalues and eigenspace overlap of a matrix and its approximation (DH fig. 2, 8, 29).

    >>> import torch
    >>> from curvescope.structure.overlap import EigenComparison
    >>> numbers = torch.tensor([2.0, 1.0])
    >>> figure = comparison(EigenComparison(numbers, numbers / 2, numbers / 2))
    >>> [line.get_ydata().tolist() for line in figure.axes[0].lines]
    [[2.0, 1.0], [1.0, 0.5]]
    """
    figure, [[left, right]] = style.panels(1, 2)
    index = range(1, len(found.true) + 1)
    for colour, name, values in (
        (style.BLUE, "true", found.true),
        (style.VERMILION, "approximate", found.approximate),
    ):
        left.plot(index, values.tolist(), marker="o", markersize=2.5, color=colour, label=name)
    if bool((found.true > 0).all()) and bool((found.approximate > 0).all()):
        left.set_yscale("log")
    left.set(xlabel="index", ylabel="eigenvalue")
    style.finish(left, title or "top eigenvalues")
    right.plot(index, found.overlap.tolist(), color=style.BLUE)
    right.set(xlabel="k", ylabel="overlap", ylim=(0, 1.05))
    style.finish(right, "top eigenspaces")
    return figure


def rank_one(layers: Mapping[str, SingularStructure]) -> Figure:
    """``‖Mat(h_i)‖ / ‖Mat(h_i)‖_F`` of each layer's eigenvectors (DH fig. 1b, 6, 22).

    >>> import torch
    >>> from curvescope.structure.correspondence import singular_structure
    >>> h = torch.eye(4)[:, :2]
    >>> rank_one({"fc1": singular_structure(h, 2)}).axes[0].lines[0].get_ydata().tolist()
    [1.0, 1.0]
    """
    figure, [[axes]] = style.panels()
    for place, (name, found) in enumerate(layers.items()):
        colour = style.CYCLE[place % len(style.CYCLE)]
        index = range(1, len(found.ratio) + 1)
        axes.plot(index, found.ratio.tolist(), ".", markersize=4, color=colour, label=name)
    axes.set(xlabel="i", ylabel="‖Mat(h)‖ / ‖Mat(h)‖_F", ylim=(0, 1.05))
    style.finish(axes, "how close eigenvectors are to rank one")
    return figure


def autocorrelation(layers: Mapping[str, AutocorrelationStructure], *, count: int = 20) -> Figure:
    """The largest eigenvalues of ``E[x xᵀ]`` over the first, with DH's three numbers (tables 6–8).

    >>> import torch
    >>> from curvescope.structure.autocorrelation import AutocorrelationStructure
    >>> one = AutocorrelationStructure("fc1", 0.99, 4.0, 3.0, torch.tensor([4.0, 1.0]))
    >>> figure = autocorrelation({"fc1": one})
    >>> figure.axes[1].tables[0][1, 2].get_text().get_text()
    '4'
    """
    figure, [[left, right]] = style.panels(1, 2)
    for place, (name, found) in enumerate(layers.items()):
        values = found.eigenvalues[:count]
        colour = style.CYCLE[place % len(style.CYCLE)]
        shares = (values / values[0]).tolist()
        left.plot(range(1, len(shares) + 1), shares, marker="o", markersize=3, color=colour,
                  label=name)  # fmt: skip
    left.set(xlabel="index", ylabel="eigenvalue over the first", ylim=(0, 1.05))
    style.finish(left, "E[xxᵀ]")
    cells = [
        [name, f"{s.alignment:.4g}", f"{s.spectral_ratio:.4g}", f"{s.dominance:.4g}"]
        for name, s in layers.items()
    ]
    heads = ["layer", "(v₁·Ê[x])²", "λ₁/λ₂", "‖E[x]E[x]ᵀ‖/‖Σ‖"]
    right.set_axis_off()
    right.table(cellText=cells, colLabels=heads, loc="center", edges="horizontal")
    return figure


def embedding(found: Embedding, *, title: str = "") -> Figure:
    """Mean logit gradients in the plane, coloured by logit and by class (DH fig. 20, 21).

    >>> import torch
    >>> from curvescope.structure.clustering import Embedding
    >>> figure = embedding(Embedding(torch.rand(3, 3, 2), torch.rand(3, 2), torch.rand(3, 2)))
    >>> [len(axes.lines) for axes in figure.axes]  # three groups and their centres
    [4, 4]
    """
    figure, [[left, right]] = style.panels(1, 2, width=3.6, height=3.4)
    _groups(left, found.points.transpose(0, 1), found.logit_centres)
    _groups(right, found.points, found.class_centres)
    start = f"{title}, " if title else ""
    style.finish(left, f"{start}by logit")
    style.finish(right, f"{start}by class")
    return figure


def _groups(axes: Axes, points: Tensor, centres: Tensor) -> None:
    """``points: [groups, members, 2]``, a colour for each group."""
    for place, own in enumerate(points):
        colour = style.CYCLE[place % (len(style.CYCLE) - 1)]
        axes.plot(own[:, 0].tolist(), own[:, 1].tolist(), "o", markersize=3, color=colour)
    x, y = centres[:, 0].tolist(), centres[:, 1].tolist()
    axes.plot(x, y, "x", markersize=6, color=style.BLACK, label="centres")
    axes.set(xticks=[], yticks=[])
