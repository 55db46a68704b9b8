"""The pictures that studies have in common, as panels of the one picture model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Image, Panel, Values, above
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure

Spectrum = ExactSpectrum | SpectralMeasure
EPSILON = 1e-5
"""What is added to eigenvalues before their logarithm is taken (Papyan 2020, fig. 6)."""
_BINS = 90


Points = Values | tuple[Values | None, Values]
"""``y``, or ``(x, y)``."""


def curves(
    title: str, xlabel: str, ylabel: str, shown: Mapping[str, Points], *, kind: Any = "line",
    **axes: Any,
) -> Panel:  # fmt: skip
    """Quantities against an index, a rank, an epoch: ``{label: y}`` or ``{label: (x, y)}``."""
    made = tuple(
        Curve.of(label, *(pair if isinstance(pair, tuple) else (None, pair)), kind=kind)
        for label, pair in shown.items()
    )
    return Panel(title=title, xlabel=xlabel, ylabel=ylabel, curves=made, **axes)


def means(
    title: str, xlabel: str, ylabel: str, shown: Mapping[str, Tensor],
    *, within: tuple[float, float] | None = None, **axes: Any,
) -> Panel:  # fmt: skip
    """Means over rows with a band of one standard deviation: ``{label: [samples, points]}``."""
    made = tuple(
        Curve.mean(label, None, samples, within=within) for label, samples in shown.items()
    )
    return Panel(title=title, xlabel=xlabel, ylabel=ylabel, curves=made, **axes)


def heat(
    title: str, xlabel: str, ylabel: str, values: Tensor, *, label: str = "",
    low: float | None = 0.0, high: float | None = 1.0,
) -> Panel:  # fmt: skip
    """A matrix as a heat map."""
    image = Image.of(values, low=low, high=high, label=label)
    return Panel(title=title, xlabel=xlabel, ylabel=ylabel, image=image)


def density(
    title: str,
    measure: SpectralMeasure,
    *,
    outliers: Tensor | None = None,
    linear: float | None = None,
) -> Panel:
    """A spectral density in eigenvalues per cell, with eigenvalues known one by one as points.

    ``linear``: the axis is linear up to this eigenvalue and logarithmic beyond.
    """
    smooth = measure.density(points=1024, kappa=3.0)
    count = smooth.values * measure.dimension * float(smooth.grid[1] - smooth.grid[0])
    shown = [Curve.of("density", smooth.grid[::2], count[::2].clamp(min=1e-12))]
    if outliers is not None:
        shown.append(Curve.of("eigenpairs", outliers, torch.ones_like(outliers), kind="points"))
    return Panel(
        title=title, xlabel="eigenvalue", ylabel="eigenvalues per cell", curves=tuple(shown),
        yscale="log", ylim=(1e-2, 3 * float(count.max())),
        xscale="linear" if linear is None else "symlog", linear=linear,
    )  # fmt: skip


def log_spectra(
    title: str, spectra: Mapping[str, Spectrum], *, floor: float = EPSILON, cumulated: bool = False,
    edges: Tensor | None = None, lowest: float = 0.5,
) -> Panel:  # fmt: skip
    """Histograms of ``log₁₀(|λ| + floor)``, or with ``cumulated`` the eigenvalues above a value."""
    edges = log_edges(spectra, floor=floor) if edges is None else edges
    made = []
    for label, spectrum in spectra.items():
        counts = bin_counts(spectrum, edges, floor=floor)
        y: Sequence[float] | Tensor = above(counts.tolist()) if cumulated else counts
        made.append(Curve.of(label, 10 ** edges[:-1], y, kind="steps"))
    most = max(max(curve.y) for curve in made)
    return Panel(
        title=title, xlabel="|λ| + ε", ylabel="eigenvalues above" if cumulated else "eigenvalues",
        curves=tuple(made), xscale="log", yscale="log", ylim=(lowest, 3 * max(most, 10.0)),
    )  # fmt: skip


def log_edges(spectra: Mapping[str, Spectrum], *, floor: float = EPSILON) -> Tensor:
    """Edges of bins for ``log₁₀(|λ| + floor)`` that hold all spectra: ``[bins + 1]``."""
    top = max(_largest(spectrum) for spectrum in spectra.values())
    low, high = torch.tensor([floor, max(top, 10 * floor)], dtype=torch.float64).log10().tolist()
    return torch.linspace(low - 0.05, high + 0.1, _BINS + 1, dtype=torch.float64)


def bin_counts(spectrum: Spectrum, edges: Tensor, *, floor: float = EPSILON) -> Tensor:
    """How many eigenvalues lie in each bin of ``log₁₀(|λ| + floor)``: ``[bins]``."""
    points = (10**edges - floor).clamp(min=0.0)
    below = spectrum.cdf(points) - spectrum.cdf(-points - 1e-300)
    counts = below.diff().clamp(min=0) * spectrum.dimension
    counts[0] += below[0] * spectrum.dimension
    return counts


def _largest(spectrum: Spectrum) -> float:
    if isinstance(spectrum, ExactSpectrum):
        return float(spectrum.values.abs().max())
    return max(abs(side) for side in spectrum.support)
