"""Densities, log-densities and eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope.plots import style
from curvescope.spectra.density import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def densities(
    curves: Mapping[str, Curve],
    *,
    exact: Tensor | None = None,
    logarithmic: bool = False,
    title: str = "",
) -> Figure:
    """One or more densities over each other, with bands of two standard errors.

    Args:
        curves: Name -> density; outliers that were taken out are marked at the foot.
        exact: Eigenvalues for a histogram underneath (already ``log(|λ| + eps)`` for logarithmic
            curves).
        logarithmic: Whether the curves are densities of the natural logarithm; the axis is then
            labelled in decades.
        title: Above the axes.

    >>> from curvescope.operators.simple import Diagonal
    >>> from curvescope.spectra import spectral_measure
    >>> A = Diagonal(torch.linspace(-1, 1, 40, dtype=torch.float64))
    >>> measure = spectral_measure(A, steps=10, generator=torch.Generator().manual_seed(0))
    >>> densities({"A": measure.density()}).axes[0].get_xlabel()
    'eigenvalue'
    """
    figure, [[axes]] = style.panels(width=6.4, height=3.8)
    scale = math.log(10) if logarithmic else 1.0
    if exact is not None:
        low = min(float(curve.grid[0]) for curve in curves.values()) / scale
        high = max(float(curve.grid[-1]) for curve in curves.values()) / scale
        axes.hist(
            (exact / scale).tolist(),
            bins=100,
            range=(low, high),
            density=True,
            color=style.GREY,
            alpha=0.45,
            label=f"exact eigenvalues ({len(exact):,})",
        )
    for colour, (name, curve) in zip(style.CYCLE, curves.items(), strict=False):
        density(axes, curve, colour=colour, label=name, scale=scale)
    peak = max(float(curve.values.max()) for curve in curves.values()) * scale
    axes.set(yscale="log", ylim=(1e-5 * peak, 3 * peak), ylabel="density")
    axes.set_xlabel("log₁₀(|eigenvalue| + ε)" if logarithmic else "eigenvalue")
    style.finish(axes, title)
    return figure


def density(
    axes: Axes, curve: Curve, *, colour: str = style.BLUE, label: str = "", scale: float = 1.0
) -> None:
    """One density with its band, drawn into given axes; ``scale`` divides the variable."""
    grid = curve.grid / scale
    if bool(torch.isfinite(curve.stderr).all()):
        low, high = (scale * side for side in curve.band(2.0))
        axes.fill_between(
            grid.tolist(), low.clamp(min=1e-300).tolist(), high.tolist(),
            color=colour, alpha=0.22, linewidth=0,
        )  # fmt: skip
    axes.plot(grid.tolist(), (scale * curve.values).tolist(), color=colour, label=label)
    for value in (curve.outliers / scale).tolist():
        axes.axvline(value, ymax=0.06, color=colour, linewidth=1.0)


def eigenvalues(
    values: Mapping[str, Tensor], *, errors: Mapping[str, Tensor] | None = None, title: str = ""
) -> Figure:
    """Eigenvalues in the order given against their index, with error bars where known.

    >>> figure = eigenvalues({"H": torch.tensor([3.0, 1.0])})
    >>> [line.get_label() for line in figure.axes[0].lines][0]
    'H'
    """
    figure, [[axes]] = style.panels(width=5.4, height=3.4)
    for colour, (name, sequence) in zip(style.CYCLE, values.items(), strict=False):
        index: Sequence[int] = range(1, len(sequence) + 1)
        axes.plot(
            index, sequence.tolist(), marker="o", markersize=3, linewidth=0.8, color=colour,
            label=name,
        )  # fmt: skip
        if errors is not None and name in errors:
            axes.errorbar(
                index, sequence.tolist(), yerr=errors[name].tolist(), fmt="none", color=colour,
                linewidth=0.8,
            )  # fmt: skip
    if all(bool((sequence > 0).all()) for sequence in values.values()):
        axes.set_yscale("log")
    axes.set(xlabel="index", ylabel="eigenvalue")
    style.finish(axes, title)
    return figure
