"""The figures of a run as data; ``plots`` draws them, as it draws those of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10

import torch
from torch import Tensor

from curvescope.catalogue.pictures import Curve, Image, Kind, Panel, Picture, Scaling
from curvescope.experiments.stages.class_layers import ClassLayerFindings, Moment
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.layers import LayerFindings
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.structure.outliers import SHARES

_COLOURS = {"H": 0, "G": 1, "E": 2}
_PARTS = {"global": 4, "class": 0, "cross": 1, "diagonal": 3, "within": 2}
_GREY = 6
_BINS = 100
_ROUNDING = 1e-10
"""Eigenvalues below this part of the largest are zero up to rounding."""
_MOST = 150


def scaling(values: Tensor | Sequence[float]) -> Scaling:
    """Logarithmic where two powers of ten or more have a place between the values, else linear.

    A logarithmic axis labels powers of ten: over less than that it would stand without numbers.

    >>> scaling([0.5, 30.0]), scaling([2.0, 30.0]), scaling([0.0, 1e6])
    ('log', 'linear', 'linear')
    """
    numbers = torch.as_tensor(values, dtype=torch.float64)
    if not len(numbers) or float(numbers.min()) <= 0:
        return "linear"
    decades = floor(log10(float(numbers.max()))) - ceil(log10(float(numbers.min())))
    return "log" if decades >= 1 else "linear"


def spectra(name: str, found: Mapping[str, Spectrum]) -> Picture:
    """Densities with their bands; all eigenvalues as bars where one matrix is shown alone."""
    curves = []
    densities = {matrix: spectrum.measure.density() for matrix, spectrum in found.items()}
    peak = max(float(curve.values.max()) for curve in densities.values())
    foot = max(1e-6 * peak, min(_single(spectrum) for spectrum in found.values()) / 3)
    if len(found) == 1:
        ((matrix, spectrum),) = found.items()
        if spectrum.exact is not None:
            curves.append(_bars(spectrum))
    for matrix, curve in densities.items():
        low, high = curve.band(2.0)
        banded = bool(torch.isfinite(curve.stderr).all())
        curves.append(
            Curve.of(
                matrix, curve.grid, curve.values.clamp(min=foot), colour=_COLOURS[matrix],
                low=low.clamp(min=foot) if banded else None,
                high=high.clamp(min=foot) if banded else None,
            )
        )  # fmt: skip
    for row, (matrix, spectrum) in enumerate(found.items()):
        marks = spectrum.measure.outliers
        heights = torch.full_like(marks, foot * 1.6 ** (1 + row), dtype=torch.float64)
        label = f"{matrix}, of largest magnitude"
        curves.append(Curve.of(label, marks, heights, kind="points", colour=_COLOURS[matrix]))
    panel = Panel(
        f"Spectrum of {', '.join(found)}", "eigenvalue", "density", tuple(curves), yscale="log",
        ylim=(foot, 3 * peak),
    )  # fmt: skip
    caption = "Densities with bands of two standard errors; eigenvalues taken out before as points."
    return Picture(name, caption, (panel,), columns=1)


def _single(spectrum: Spectrum) -> float:
    """How high one eigenvalue stands in a density."""
    curve = spectrum.measure.density()
    return 0.4 / (spectrum.measure.dimension * max(curve.sigma, 1e-300))


def _bars(spectrum: Spectrum) -> Curve:
    """All eigenvalues in bins, as shares of the dimension: zeros count as well."""
    assert spectrum.exact is not None
    values, zeros = spectrum.exact.values, spectrum.exact.zeros
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    width = (high - low) / _BINS or 1.0
    counts = torch.histc(values, _BINS, low, low + width * _BINS)
    if zeros:
        counts[min(int(-low / width), _BINS - 1)] += zeros
    centres = low + width * (torch.arange(_BINS, dtype=torch.float64) + 0.5)
    heights = counts / (spectrum.measure.dimension * width)
    label = f"all {spectrum.measure.dimension:,} eigenvalues"
    return Curve.of(label, centres, heights, kind="bars", colour=_GREY)


def layer(name: str, found: LayerFindings) -> Picture:
    """Eigenvalues, overlap with rank-one ratios, and the four correspondence matrices (DH)."""
    title = found.name or "the model itself"
    values = torch.cat([found.true, found.approximate])
    panels = [
        Panel(
            f"{title}: top eigenvalues", "index", "eigenvalue",
            (Curve.of("true", None, found.true), Curve.of("Kronecker", None, found.approximate)),
            yscale=scaling(values),
        ),
        *(_correspondence(found, kind, "input") for kind in ("true", "approximate")),
        Panel(
            "overlap and rank one", "k", "share",
            (
                Curve.of("overlap at k", None, found.overlap),
                Curve.of("rank-one ratio of the k-th", None, found.ratio, kind="points"),
            ),
            ylim=(0.0, 1.05),
        ),
        *(_correspondence(found, kind, "output") for kind in ("true", "approximate")),
    ]  # fmt: skip
    return Picture(name, f"{title}: Hessian and Kronecker product.", tuple(panels), columns=3)


def _correspondence(found: LayerFindings, kind: str, side: str) -> Panel:
    symbol, size = {
        "input": ("E[xxᵀ]", found.inputs),
        "output": ("E[M]", found.outputs),
    }[side]
    matrix = found.correspondences[f"{kind} {side}"]
    words = {"true": "true", "approximate": "Kronecker"}[kind]
    rows, columns = matrix.shape
    return Panel(
        f"{words} eigenvectors and {symbol}",
        f"{words} eigenvector, {columns} of {found.outputs * found.inputs:,}",
        f"of {symbol}, {rows} of {size:,}",
        image=Image.of(matrix, low=0.0, high=1.0),
    )


def attribution(name: str, found: ClassFindings) -> Picture:
    """The largest eigenvalues of G by the part that makes most of each; knockouts if known."""
    largest = float(found.attribution.values[0])
    values = found.attribution.values[:_MOST]
    values = values[values > _ROUNDING * largest]
    makers = found.attribution.maker[: len(values)]
    curves = []
    for part in SHARES:
        chosen = [i for i, maker in enumerate(makers) if maker == part]
        if chosen:
            places = torch.tensor(chosen) + 1
            colour = _PARTS[part]
            curves.append(Curve.of(part, places, values[chosen], kind="points", colour=colour))
    edge = found.attribution.edge
    if edge > _ROUNDING * largest:  # else there is no bulk
        curves.append(Curve.of("edge of the bulk", [1, len(values)], [edge] * 2, colour=_GREY))
    shown = [y for curve in curves for y in curve.y]
    panels = [
        Panel(
            "who makes each eigenvalue", "index", "eigenvalue of G", tuple(curves),
            yscale=scaling(shown),
        )
    ]  # fmt: skip
    if len(found.whole):
        panels.append(_knockouts(found))
    return Picture(name, "Class structure of G.", tuple(panels))


def _knockouts(found: ClassFindings) -> Panel:
    """G as dots underneath, since the curves without a part may lie on it."""
    floor = _ROUNDING * float(found.whole[0])
    whole = found.whole[found.whole > floor]
    curves = [Curve.of("G", None, whole, kind="points", colour=_GREY)]
    for part, values in found.without.items():
        kept = values[values > floor]
        curves.append(Curve.of(f"without {part}", None, kept, colour=_PARTS[part]))
    return Panel(
        "G with a part taken away", "index", "eigenvalue", tuple(curves),
        xscale=scaling([1.0, len(whole)]), yscale=scaling(whole),
    )  # fmt: skip


def class_layer(name: str, found: ClassLayerFindings) -> Picture:
    """KFAC and CFAC beside the exact block, and the spectra of features and errors (TR)."""
    title = found.name or "the model itself"
    heights = torch.cat(list(found.densities.values()))
    some = heights[heights > 0]
    foot = float(some.min()) / 2 if len(some) else 1.0
    peak = float(heights.max()) * 2 if len(some) else 2.0
    half = float(found.centres[1] / found.centres[0]) ** 0.5
    edges = torch.cat([found.centres / half, found.centres[-1:] * half])
    curves = [
        Curve.of(_with_zeros(matrix, found), edges, torch.cat([values, values[-1:]]), kind="steps")
        for matrix, values in ((name, v.clamp(min=foot)) for name, v in found.densities.items())
    ]
    panels = [
        Panel(
            f"{title}: G, KFAC, CFAC", "eigenvalue", "share per decade", tuple(curves),
            xscale="log", yscale="log", ylim=(foot, max(peak, 100 * foot)),
        ),
        *(_moment(f"{title}: {kind}", moment) for kind, moment in found.moments.items()),
    ]  # fmt: skip
    return Picture(name, f"{title} by class.", tuple(panels), columns=3)


def _with_zeros(matrix: str, found: ClassLayerFindings) -> str:
    """The name with the share that a logarithmic axis cannot show."""
    share = found.below.get(matrix, 0.0)
    return f"{matrix} ({100 * share:.0f} % below)" if share >= 0.005 else matrix


def _moment(title: str, moment: Moment) -> Panel:
    curves = []
    for label, values, colour in (
        ("all", moment.total, 0),
        ("class and cross", moment.class_and_cross, 2),
        ("class", moment.class_, 1),
    ):
        kept = values[values > _ROUNDING * float(moment.total[0])]
        if len(kept):
            kind: Kind = "line" if label == "all" else "points"
            curves.append(Curve.of(label, None, kept, kind=kind, colour=colour))
    shown = torch.cat([torch.tensor(curve.y) for curve in curves])
    return Panel(title, "index", "eigenvalue", tuple(curves), yscale=scaling(shown))
