"""The pictures of a run, from the results of its stages: on the page and as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

import torch
from torch import Tensor

from curvescope.experiments.stages.class_layers import ClassLayerFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.layers import LayerFindings
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.figures import spectra as spectrum_panels
from curvescope.figures.model import Curve, Dash, Image, Kind, Panel, Picture, Scaling
from curvescope.structure.outliers import SHARES

KINDS = {"true": "true", "approximate": "Kronecker"}
PARTS = {"global": 4, "class": 0, "cross": 1, "diagonal": 3, "within": 2}
"""The colors of the class parts, as indices of the style's cycle."""
ROUNDING = 1e-10
"""Eigenvalues below this part of the largest are zero up to rounding."""
_FACTORS: dict[str, dict[str, Any]] = {
    "G": {"color": 1, "width": 1.8},
    "KFAC": {"color": 4, "dash": "dashed"},
    "CFAC": {"color": 0, "dash": "dotted"},
}
_DASHES: tuple[Dash, ...] = ("", "dashed", "dotted")
_GRAY = 6
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
    """Densities with their bands; all eigenvalues as well where one matrix is shown alone."""
    caption = "Densities with their bands; eigenvalues that were taken out before as marks."
    return Picture(name, caption, (spectra_panel(found),), columns=1)


def spectra_panel(
    found: Mapping[str, Spectrum], *, title: str = "", by_matrix: bool = True
) -> Panel:
    """Spectra over each other, by matrix or by run.

    A matrix that vanishes has no density and is left out, unless it is all there is.
    """
    found = {name: spectrum for name, spectrum in found.items() if not spectrum.vanishes} or found
    shown = {
        name: spectrum_panels.Spectrum(each.measure, each.residuals, each.exact)
        for name, each in found.items()
    }
    return spectrum_panels.panel(
        shown,
        title=title or f"Spectrum of {', '.join(found)}",
        colors=spectrum_panels.OF_MATRIX if by_matrix else None,
        hide_exact=not by_matrix,
    )


def layer(name: str, found: LayerFindings) -> Picture:
    """Eigenvalues, overlap with rank-one ratios, and the four correspondence matrices (DH)."""
    title = found.name or "the model itself"
    panels = (
        layer_values(found),
        *(correspondence(found, kind, "input") for kind in KINDS),
        layer_shares(found),
        *(correspondence(found, kind, "output") for kind in KINDS),
    )
    return Picture(name, f"{title}: Hessian and Kronecker product.", panels, columns=3)


def layer_values(found: LayerFindings) -> Panel:
    """The largest eigenvalues of a layer's Hessian and of its Kronecker product."""
    title = found.name or "the model itself"
    return Panel(
        f"{title}: top eigenvalues", "index", "eigenvalue",
        (
            Curve.of("true Hessian", None, found.true),
            Curve.of("Kronecker product", None, found.approximate),
        ),
        yscale=scaling(torch.cat([found.true, found.approximate])),
    )  # fmt: skip


def layer_shares(found: LayerFindings) -> Panel:
    """How far the two eigenspaces overlap, and how near each eigenvector is to rank one."""
    return Panel(
        "overlap and rank one", "k", "share",
        (
            Curve.of("overlap of the first k", None, found.overlap),
            Curve.of("rank-one ratio of the k-th", None, found.ratio, kind="points"),
        ),
        ylim=(0.0, 1.05),
    )  # fmt: skip


def correspondence(found: LayerFindings, kind: str, side: str) -> Panel:
    """True or approximate eigenvectors against those of one Kronecker factor."""
    symbol, size = {
        "input": ("E[xxᵀ]", found.inputs),
        "output": ("E[M]", found.outputs),
    }[side]
    matrix = found.correspondences[f"{kind} {side}"]
    rows, columns = matrix.shape
    return Panel(
        f"{KINDS[kind]} eigenvectors and {symbol}",
        f"{KINDS[kind]} eigenvector, {columns} of {found.outputs * found.inputs:,}",
        f"eigenvector of {symbol}, {rows} of {size:,}",
        image=Image.of(matrix, low=0.0, high=1.0),
    )


def attribution(name: str, found: ClassFindings) -> Picture:
    """The largest eigenvalues of G by the part that makes most of each; knockouts if known."""
    panels = [attributed(found)]
    if len(found.whole):
        panels.append(knockouts(found))
    return Picture(name, "Class structure of G.", tuple(panels))


def attributed(found: ClassFindings) -> Panel:
    """The largest eigenvalues of G, each by the part that makes most of it."""
    largest = float(found.attribution.values[0])
    values = found.attribution.values[:_MOST]
    values = values[values > ROUNDING * largest]
    makers = found.attribution.maker[: len(values)]
    curves = []
    for part in SHARES:
        chosen = [i for i, maker in enumerate(makers) if maker == part]
        if chosen:
            places, color = torch.tensor(chosen) + 1, PARTS[part]
            label = f"{part} part"
            curves.append(Curve.of(label, places, values[chosen], kind="points", color=color))
    edge = found.attribution.edge
    if edge > ROUNDING * largest:  # else there is no bulk
        ends = [1, len(values)]
        curves.append(Curve.of("edge of the bulk", ends, [edge] * 2, color=_GRAY, dash="dashed"))
    shown = [y for curve in curves for y in curve.y]
    return Panel(
        "who makes each eigenvalue", "index", "eigenvalue of G", tuple(curves),
        yscale=scaling(shown),
    )  # fmt: skip


def knockouts(found: ClassFindings) -> Panel:
    """The eigenvalues of G with each part subtracted: what disappears was made by it.

    The curves lie over each other where a part does nothing: G is a broad one underneath.
    """
    floor = ROUNDING * float(found.whole[0])
    whole = found.whole[found.whole > floor]
    curves = [Curve.of("G", None, whole, color=_GRAY, width=2.8)]
    for place, (part, values) in enumerate(found.without.items()):
        rest = values[values > floor]
        label, dash = f"without the {part} part", _DASHES[place % len(_DASHES)]
        curves.append(Curve.of(label, None, rest, color=PARTS[part], dash=dash))
    return Panel(
        "G with a part taken away", "index", "eigenvalue", tuple(curves),
        xscale=scaling([1.0, len(whole)]), yscale=scaling(whole),
    )  # fmt: skip


def class_layer(name: str, found: ClassLayerFindings) -> Picture:
    """KFAC and CFAC beside the exact block, and the spectra of features and errors (TR)."""
    title = found.name or "the model itself"
    panels = [factors(found), *(moment(found, kind) for kind in found.moments)]
    return Picture(name, f"{title} by class.", tuple(panels), columns=3)


def factors(found: ClassLayerFindings) -> Panel:
    """The spectra of the exact block, of KFAC and of CFAC, as shares of each decade."""
    title = found.name or "the model itself"
    heights = torch.cat(list(found.densities.values()))
    some = heights[heights > 0]
    foot = float(some.min()) / 2 if len(some) else 1.0
    peak = float(heights.max()) * 2 if len(some) else 2.0
    half = float(found.centers[1] / found.centers[0]) ** 0.5
    edges = torch.cat([found.centers / half, found.centers[-1:] * half])
    curves = []
    for matrix, look in _FACTORS.items():
        values = found.densities[matrix].clamp(min=foot)
        steps = torch.cat([values, values[-1:]])
        curves.append(Curve.of(_with_zeros(matrix, found), edges, steps, kind="steps", **look))
    return Panel(
        f"{title}: G, KFAC, CFAC", "eigenvalue", "share per decade", tuple(curves),
        xscale="log", yscale="log", ylim=(foot, max(peak, 100 * foot)),
    )  # fmt: skip


def _with_zeros(matrix: str, found: ClassLayerFindings) -> str:
    """The name with the share that a logarithmic axis cannot show."""
    share = found.below.get(matrix, 0.0)
    return f"{matrix} ({100 * share:.0f} % below)" if share >= 0.005 else matrix


def moment(found: ClassLayerFindings, kind: str) -> Panel:
    """The eigenvalues of a second moment and of its class parts, without those that are zero."""
    title, values = found.name or "the model itself", found.moments[kind]
    parts = [("all", values.total, 0), ("class part", values.class_, 1)]
    if kind == "errors":
        parts.insert(1, ("class and cross part", values.class_and_cross, 2))
    curves = []
    for label, each, color in parts:
        positive = each[each > ROUNDING * float(values.total[0])]
        if len(positive):
            shape: Kind = "line" if label == "all" else "points"
            curves.append(Curve.of(label, None, positive, kind=shape, color=color))
    shown = torch.cat([torch.tensor(curve.y) for curve in curves])
    return Panel(f"{title}: {kind}", "index", "eigenvalue", tuple(curves), yscale=scaling(shown))
