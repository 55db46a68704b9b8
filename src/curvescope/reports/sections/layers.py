"""Layers: how well a Kronecker product explains each layer's Hessian."""

from __future__ import annotations

from collections.abc import Sequence

from curvescope.experiments.stages import layers
from curvescope.experiments.stages.layers import LayerFindings
from curvescope.experiments.store import RunDirectory
from curvescope.reports import charts
from curvescope.reports.blocks import Block, Chart, Fold, Pair, Section, Table, Text, short

_OPEN = 2
"""Layers whose pictures are unfolded from the start."""


def build(run: RunDirectory) -> Section | None:
    """The layers that are finished."""
    found: list[LayerFindings] = []
    reasons: list[str] = []
    for name in run.stages:
        if name.startswith("layer-"):
            stage = run.stage(name)
            findings = layers.restore(stage)
            if findings is None:
                reasons.append(f"{stage.values['layer']}: {stage.values['left out']}")
            else:
                found.append(findings)
    if not found and not reasons:
        return None
    outputs = run.stage("overview").values["outputs"]
    blocks: list[Block] = []
    if found:
        blocks.append(_table(found, outputs))
        blocks += [_fold(layer, index) for index, layer in enumerate(found)]
    blocks += [Text(f"Left out: {reason}") for reason in reasons]
    return Section("layers", "Layers", _seen(found, outputs), _EXPECTED, blocks)


_EXPECTED = (
    "A layer's Hessian is close to E[M] ⊗ E[xxᵀ], the output Hessian times the auto-correlation of "
    "the input, so that its top eigenvectors, reshaped as the weight, are nearly of rank one, and "
    "E[xxᵀ] is nearly the mean input alone: (v₁ᵀÊ[x])² from 0.964 to 1 (Wu et al., “Dissecting "
    "Hessian”, sec. 4.2, 4.3 and 5.2); batch norm weakens all of this (sec. 5.3)."
)


def _seen(found: Sequence[LayerFindings], outputs: int) -> str:
    if not found:
        return "No layer allows a Kronecker factorisation; the reasons are below."
    ratios = [float(layer.approximate[0] / layer.true[0]) for layer in found]
    overlaps = [_at(layer, outputs) for layer in found]
    ranks = [float(layer.ratio[: outputs - 1 or 1].mean()) for layer in found]
    return (
        f"In {len(found)} layers, the Kronecker product puts the largest eigenvalue at "
        f"{_range(ratios)} times the true one, the two top eigenspaces of dimension "
        f"{_dimension(outputs)} overlap by {_range(overlaps)}, and their eigenvectors have "
        f"{_range(ranks)} of their norm in rank one."
    )


def _dimension(outputs: int) -> int:
    """``c − 1``, where the paper has the gap; 1 for a single output."""
    return max(outputs - 1, 1)


def _at(layer: LayerFindings, outputs: int) -> float:
    return float(layer.overlap[min(_dimension(outputs), len(layer.overlap)) - 1])


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _table(found: Sequence[LayerFindings], outputs: int) -> Table:
    k = _dimension(outputs)
    rows = [
        [
            layer.name or "the model itself",
            f"{layer.outputs} × {layer.inputs}",
            short(float(layer.true[0])),
            short(float(layer.approximate[0])),
            f"{_at(layer, outputs):.3f}",
            f"{float(layer.ratio[:k].mean()):.3f}",
            f"{layer.alignment:.4f}",
            short(layer.spectral_ratio, 3),
            short(layer.dominance, 3),
        ]
        for layer in found
    ]
    head = [
        "layer",
        "m × n",
        "λ₁ true",
        "λ₁ Kronecker",
        f"overlap at {k}",
        f"rank-one ratio, top {k}",
        "(v₁ᵀÊ[x])²",
        "λ₁/λ₂ of E[xxᵀ]",
        "‖E[x]E[x]ᵀ‖/‖Σ‖",
    ]
    return Table("Layers", head, rows)


def _fold(layer: LayerFindings, index: int) -> Fold:
    name = layer.name or "the model itself"
    id = f"layer{index}"
    index_of = list(range(1, len(layer.true) + 1))
    eigenvalues = charts.line_chart(
        {
            "true Hessian": {"x": index_of, "y": layer.true, "marks": True},
            "Kronecker product": {"x": index_of, "y": layer.approximate, "marks": True},
        },
        title=f"Top eigenvalues of {name}",
        x="index",
        y="eigenvalue",
        log=bool((layer.true > 0).all()),
        toggles=True,
    )
    shares = charts.line_chart(
        {
            "overlap of the first k eigenvectors": {"x": index_of, "y": layer.overlap},
            "rank-one ratio of the k-th eigenvector": {
                "x": index_of,
                "y": layer.ratio,
                "kind": "points",
            },
        },
        title=f"Overlap and rank-one ratio of {name}",
        x="k",
        y="share",
    )
    return Fold(
        f"{name}: pictures",
        [
            Pair(
                [
                    Chart(f"{id}-values", f"{name}: top eigenvalues", eigenvalues),
                    Chart(f"{id}-overlap", f"{name}: overlap and rank one", shares),
                ]
            ),
            *(_heat(layer, id, name, side) for side in ("input", "output")),
        ],
        open=index < _OPEN,
    )


def _heat(layer: LayerFindings, id: str, name: str, side: str) -> Pair:
    """The correspondence of true and approximate eigenvectors with one factor."""
    factor = {"input": "E[xxᵀ]", "output": "E[M]"}[side]
    pair = []
    for kind, words in (("true", "true"), ("approximate", "Kronecker")):
        matrix = layer.correspondences[f"{kind} {side}"]
        caption = f"{name}: {words} eigenvectors and {factor}"
        spec = charts.heat_map(
            matrix, title=caption, x=f"{words} eigenvector", y=f"eigenvector of {factor}"
        )
        pair.append(Chart(f"{id}-{kind}-{side}", caption, spec))
    return Pair(pair)
