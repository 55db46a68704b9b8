"""Panels of the structure of curvature: outliers by part, layers and their factors, second moments.

The results of the library and the stages of an analysis, which keep a part of them, share these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, log10

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Image, Kind, Panel, Scaling
from curvescope.structure.layer_comparison import LayerComparison
from curvescope.structure.outliers import SHARES, Attribution

PARTS = {"global": 4, "class": 0, "cross": 1, "diagonal": 3, "within": 2}
"""The colors of the class parts, as indices of the style's cycle."""
GRAY = 6
ROUNDING = 1e-10
"""Eigenvalues below this part of the largest are zero up to rounding."""
FACTORS = {"input": "E[xxᵀ]", "output": "E[M]"}
"""The Kronecker factor on each side of a layer."""
KINDS = {"true": "true", "approximate": "Kronecker"}
"""What the two kinds of a layer's eigenvectors are called."""
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


def attribution(result: Attribution) -> Panel:
    """The largest eigenvalues of G, each by the part that makes most of it."""
    largest = float(result.values[0])
    values = result.values[:_MOST]
    values = values[values > ROUNDING * largest]
    makers = result.maker[: len(values)]
    curves = []
    for part in SHARES:
        chosen = [i for i, maker in enumerate(makers) if maker == part]
        if chosen:
            places, color = torch.tensor(chosen) + 1, PARTS[part]
            label = f"{part} part"
            curves.append(Curve.of(label, places, values[chosen], kind="points", color=color))
    edge = result.edge
    if edge > ROUNDING * largest:  # else there is no bulk
        ends = [1, len(values)]
        curves.append(Curve.of("edge of the bulk", ends, [edge] * 2, color=GRAY, dash="dashed"))
    heights = [y for curve in curves for y in curve.y]
    return Panel(
        "who makes each eigenvalue", "index", "eigenvalue of G", tuple(curves),
        yscale=scaling(heights),
    )  # fmt: skip


def eigenvalues(
    title: str,
    true: Tensor,
    approximate: Tensor,
    names: tuple[str, str] = ("true", "approximate"),
) -> Panel:
    """The largest eigenvalues of a matrix and of its approximation, such as a Kronecker product."""
    values = (true, approximate)
    return Panel(
        title, "index", "eigenvalue",
        tuple(Curve.of(name, None, each) for name, each in zip(names, values, strict=True)),
        yscale=scaling(torch.cat([true, approximate])),
    )  # fmt: skip


def overlaps(overlap: Tensor, ratio: Tensor | None = None) -> Panel:
    """How far two eigenspaces overlap, and how near each eigenvector is to rank one."""
    curves = [Curve.of("overlap of the first k", None, overlap)]
    if ratio is not None:
        curves.append(Curve.of("rank-one ratio of the k-th", None, ratio, kind="points"))
    title = "overlap" if ratio is None else "overlap and rank one"
    return Panel(title, "k", "share", tuple(curves), ylim=(0.0, 1.05))


def correspondence(matrix: Tensor, side: str, *, title: str = "", whose: str = "") -> Panel:
    """Eigenvectors against those of one Kronecker factor; ``whose`` says what they belong to."""
    vectors = f"{whose} eigenvector".strip()
    image = Image.of(matrix, low=0.0, high=1.0)
    return Panel(title, vectors, f"eigenvector of {FACTORS[side]}", image=image)


def layer(compared: LayerComparison) -> list[Panel]:
    """Eigenvalues, overlap with rank-one ratios, and the four correspondence matrices (DH)."""
    return [
        layer_values(compared),
        *(layer_correspondence(compared, kind, "input") for kind in KINDS),
        layer_shares(compared),
        *(layer_correspondence(compared, kind, "output") for kind in KINDS),
    ]


def layer_values(compared: LayerComparison) -> Panel:
    """The largest eigenvalues of a layer's Hessian and of its Kronecker product."""
    title = f"{compared.name or 'the model itself'}: top eigenvalues"
    names = ("true Hessian", "Kronecker product")
    return eigenvalues(title, compared.true, compared.approximate, names)


def layer_shares(compared: LayerComparison) -> Panel:
    """How far the two eigenspaces overlap, and how near each eigenvector is to rank one."""
    return overlaps(compared.overlap, compared.ratio)


def layer_correspondence(compared: LayerComparison, kind: str, side: str) -> Panel:
    """True or approximate eigenvectors against those of one Kronecker factor."""
    matrix, symbol = compared.correspondences[f"{kind} {side}"], FACTORS[side]
    rows, columns = matrix.shape
    size = {"input": compared.inputs, "output": compared.outputs}[side]
    title = f"{KINDS[kind]} eigenvectors and {symbol}"
    panel = correspondence(matrix, side, title=title, whose=KINDS[kind])
    return replace(
        panel,
        xlabel=f"{panel.xlabel}, {columns} of {compared.outputs * compared.inputs:,}",
        ylabel=f"{panel.ylabel}, {rows} of {size:,}",
    )


def moment(
    title: str, total: Tensor, class_part: Tensor, class_and_cross: Tensor | None = None
) -> Panel:
    """The eigenvalues of a second moment and of its class parts, without those that are zero."""
    parts = [("all", total, 0), ("class part", class_part, 1)]
    if class_and_cross is not None:
        parts.insert(1, ("class and cross part", class_and_cross, 2))
    curves = []
    for label, each, color in parts:
        positive = each[each > ROUNDING * float(total[0])]
        if len(positive):
            shape: Kind = "line" if label == "all" else "points"
            curves.append(Curve.of(label, None, positive, kind=shape, color=color))
    values = torch.cat([torch.tensor(curve.y) for curve in curves])
    return Panel(title, "index", "eigenvalue", tuple(curves), yscale=scaling(values))
