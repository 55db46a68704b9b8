"""Panels of spectra: densities with their bands, eigenvalues that were taken out, all eigenvalues.

A density is drawn on the grid on which it was computed, which resolves the width of its bumps:
there is nothing finer to be seen by zooming. The alternate axis is that of ``log |λ|``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure

OF_MATRIX = {"H": 0, "G": 1, "E": 2}
"""The colors of the matrices, as indices of the style's cycle."""
_POINTS = 640
_BINS = 100
_FLOOR = 1e-7
"""Where a logarithmic axis ends, relative to the largest eigenvalue."""


@dataclass(frozen=True)
class Spectrum:
    """A density, with outlying and exact eigenvalues where these were computed."""

    measure: SpectralMeasure
    residuals: Tensor | None = None  # of the eigenvalues that were taken out
    exact: ExactSpectrum | None = None


def panel(
    spectra: Mapping[str, Spectrum],
    *,
    title: str = "",
    colors: Mapping[str, int] | None = None,
    hide_exact: bool = False,
) -> Panel:
    """Densities over each other, with the eigenvalues that were taken out, and all if computed.

    Args:
        spectra: Name in the legend -> spectrum.
        title: The title of the panel.
        colors: Name -> index in the cycle of colors; by default one after the other.
        hide_exact: Whether all eigenvalues wait until the reader of a page asks for them.
    """
    looks = {name: (colors or {}).get(name, i) for i, name in enumerate(spectra)}
    eps = max(_FLOOR * max(_magnitude(s) for s in spectra.values()), 1e-30)
    plain, logarithmic = (_axis(spectra, looks, e, hide_exact) for e in (None, eps))
    other = Panel(
        title, "|λ|", "density per decade", logarithmic.curves, xscale="log", yscale="log",
        ylim=logarithmic.limits,
    )  # fmt: skip
    return Panel(
        title, "eigenvalue λ", "density", plain.curves, yscale="log", ylim=plain.limits,
        alternate=other,
    )  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    curves: tuple[Curve, ...]
    limits: tuple[float, float]


def _magnitude(spectrum: Spectrum) -> float:
    measure = spectrum.measure
    ends = [abs(end) for end in measure.support]
    return max(*ends, *measure.outliers.abs().tolist(), 0.0)


def _axis(
    spectra: Mapping[str, Spectrum], looks: Mapping[str, int], eps: float | None, hide_exact: bool
) -> _Axis:
    """All curves against the eigenvalues, or against their magnitudes where ``eps`` is given."""
    lines, marks, bars, singles, peaks = [], [], [], [], []
    for name, spectrum in spectra.items():
        measure, color = spectrum.measure, looks[name]
        curve = measure.density(_POINTS) if eps is None else measure.log_density(eps, _POINTS)
        factor = 1.0 if eps is None else math.log(10)
        grid = curve.grid if eps is None else curve.grid.exp()
        peaks.append(factor * float(curve.values.max()))
        singles.append(0.4 * factor / (measure.dimension * max(curve.sigma, 1e-300)))
        lines.append((name, grid, factor * curve.values, curve, factor, color))
        if len(measure.outliers):
            errors = spectrum.residuals
            marks.append(
                Curve.of(
                    f"{name}, of largest magnitude",
                    measure.outliers if eps is None else measure.outliers.abs() + eps,
                    torch.zeros_like(measure.outliers) if errors is None else errors,
                    kind="marks",
                    color=color,
                )
            )
        if spectrum.exact is not None:
            bars.append(_all(name, spectrum.exact, eps, color, hidden=hide_exact))
    # Low enough to see a single eigenvalue, but not to the last digit of a narrow bump's tail.
    peak = max(peaks)
    foot = min(max(0.2 * min(singles), 1e-9 * peak), 1e-2 * peak)
    curves = [_density(*line, foot) for line in lines]
    return _Axis((*curves, *marks, *bars), (foot, 3 * peak))


def _density(
    name: str, grid: Tensor, values: Tensor, curve: object, factor: float, color: int, foot: float
) -> Curve:
    low, high = (factor * side for side in curve.band())  # type: ignore[attr-defined]
    banded = bool(torch.isfinite(high).all())
    return Curve.of(
        name, grid, values.clamp(min=foot / 10), color=color,
        low=low.clamp(min=foot / 10) if banded else None, high=high if banded else None,
    )  # fmt: skip


def _all(name: str, exact: ExactSpectrum, eps: float | None, color: int, *, hidden: bool) -> Curve:
    """All eigenvalues in bins, as shares of the dimension: zeros count as well."""
    values = exact.values if eps is None else (exact.values.abs() + eps).log10()
    zero = 0.0 if eps is None else math.log10(eps)
    ends = [float(values.min()), float(values.max())] if len(values) else [zero, zero]
    if exact.zeros:
        ends = [min(ends[0], zero), max(ends[1], zero)]
    low, high = ends
    width = (high - low) / _BINS or 1.0
    counts = torch.histc(values.double(), _BINS, low, low + width * _BINS)
    if exact.zeros:
        counts[min(int((zero - low) / width), _BINS - 1)] += exact.zeros
    heights = counts / (exact.dimension * width)
    edges = low + width * torch.arange(_BINS + 1, dtype=torch.float64)
    label = f"{name}, all {exact.dimension:,} eigenvalues"
    places = edges if eps is None else 10.0**edges
    made = Curve.of(label, places, torch.cat([heights, heights[-1:]]), kind="filled", color=color)
    return made if not hidden else Curve(**{**vars(made), "hidden": True})
