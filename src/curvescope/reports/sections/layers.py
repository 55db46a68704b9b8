"""Layers: how well a Kronecker product explains each layer's Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from curvescope._numbers import short
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.store import Finding, RunDirectory
from curvescope.figures import structure as pictures
from curvescope.reports.blocks import Block, Chart, Fold, Pair, Section, Table, Text, factor
from curvescope.reports.sections.subject import classes_of, count, has_batch_norm, span
from curvescope.structure.layer_comparison import LayerComparison

_OPEN = 2
"""Layers whose pictures are unfolded from the start."""


def build(run: RunDirectory) -> Section | None:
    """The section of the layers whose stages are finished."""
    findings: list[LayerComparison] = []
    reasons: list[str] = []
    for name in run.stages:
        if name.startswith("layer-"):
            finding = run.result(name, Finding[LayerComparison])
            if finding.value is None:
                reasons.append(f"{finding.subject}: {finding.left_out}")
            else:
                findings.append(finding.value)
    if not findings and not reasons:
        return _without_layers(run)
    k = _dimension(run)
    blocks: list[Block] = []
    if findings:
        blocks.append(_table(findings, k))
        drawn = {layer.draws for layer in findings if layer.draws}
        blocks += [Text(_DRAWN.format(max(drawn)))] if drawn else []
        summed = sum(layer.sharing == "reduce" for layer in findings)
        blocks += [Text(_SUMMED.format(count(summed, "layer")))] if summed else []
        blocks += [_fold(layer, index) for index, layer in enumerate(findings)]
    blocks += [Text(f"Left out: {reason}") for reason in reasons]
    expected = _EXPECTED + (_BATCH_NORM if has_batch_norm(run) else "")
    return Section(
        "layers",
        "Layers",
        _observation(findings, k),
        f"{expected}.",
        blocks,
        assessment=_assessment(findings, k),
    )


def _without_layers(run: RunDirectory) -> Section | None:
    """A sentence instead, for a run that is past its layers and had none."""
    if run.config.layers or not run.has("summary"):
        return None
    observation = "There is no layer to look into: none was chosen, or none is of a known kind."
    return Section("layers", "Layers", observation, f"{_EXPECTED}.")


_EXPECTED = (
    "E[M] ⊗ E[xxᵀ], the output Hessian times the auto-correlation of the input, works reasonably "
    "well for the top eigenvalues and eigenspaces of a layer’s Hessian (Wu et al., “Dissecting "
    "Hessian”, sec. 4.1 and 4.2), whose top eigenvectors are then nearly of rank one; and E[xxᵀ] "
    "is nearly the mean input alone: (v₁ᵀÊ[x])² from 0.964 to 1 (sec. 4.3)"
)
_BATCH_NORM = "; with batch norm all of this is weaker (sec. 5.3)"
_ALIGNED = 0.964
_DRAWN = (
    "E[M] is a mean over {} labels drawn at every output; the mean over all labels would take a "
    "backward pass for each of them."
)
_SUMMED = (
    "Where positions share a weight, errors are summed and inputs averaged over them before the "
    "factors are formed (reduce), in {}."
)


def _observation(findings: Sequence[LayerComparison], k: int) -> str:
    if not findings:
        return "No layer allows a Kronecker factorization; the reasons are below."
    ratios = [ratio for layer in findings if (ratio := _ratio(layer)) is not None]
    overlaps = [_at(layer, k) for layer in findings]
    ranks = [float(layer.ratio[:k].mean()) for layer in findings]
    top = "top eigenvectors" if k == 1 else f"top eigenspaces of dimension {k}"
    text = f"In {count(len(findings), 'layer')}, "
    if ratios:
        text += (
            f"the Kronecker product puts the largest eigenvalue at {span(ratios)} times the true "
            "one, "
        )
    return text + (
        f"the two {top} overlap by {span(overlaps)}, and the true eigenvectors there have "
        f"{span(ranks)} of their norm in rank one."
    )


def _assessment(findings: Sequence[LayerComparison], k: int) -> str:
    """In how many layers the paper's statements hold."""
    if not findings:
        return ""
    ratios = [ratio for layer in findings if (ratio := _ratio(layer)) is not None]
    near = sum(0.5 <= ratio <= 2 for ratio in ratios)
    overlapping = sum(_at(layer, k) >= 0.5 for layer in findings)
    aligned = sum(layer.alignment >= _ALIGNED for layer in findings)
    return (
        f"The largest eigenvalue is right within a factor of two in {near} of {len(ratios)} "
        f"layers, the overlap is at least one half in {overlapping} of {len(findings)}, and "
        f"(v₁ᵀÊ[x])² is at least {_ALIGNED} in {aligned} of {len(findings)}."
    )


def _dimension(run: RunDirectory) -> int:
    """``c − 1``, where the paper has the gap; the number of outputs where there are no classes."""
    classes = classes_of(run)
    outputs = run.result("overview", Overview).outputs
    return max(outputs if classes is None else classes - 1, 1)


def _ratio(layer: LayerComparison) -> float | None:
    """The approximate largest eigenvalue over the true one; none where that is not positive."""
    true = float(layer.true[0])
    return float(layer.approximate[0]) / true if true > 0 else None


def _at(layer: LayerComparison, k: int) -> float:
    return float(layer.overlap[min(k, len(layer.overlap)) - 1])


def _table(findings: Sequence[LayerComparison], k: int) -> Table:
    rows = [
        [
            layer.name or "the model itself",
            f"{layer.outputs} × {layer.inputs}",
            short(float(layer.true[0])),
            short(float(layer.approximate[0])),
            f"{_at(layer, k):.3f}",
            f"{float(layer.ratio[:k].mean()):.3f}",
            f"{layer.alignment:.4f}",
            factor(layer.spectral_ratio),
            factor(layer.dominance),
        ]
        for layer in findings
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


def _fold(layer: LayerComparison, index: int) -> Fold:
    name = layer.name or "the model itself"
    id = f"layer{index}"
    values = Chart(
        f"{id}-values", f"{name}: top {len(layer.true)} eigenvalues", pictures.layer_values(layer)
    )
    shares = Chart(f"{id}-overlap", f"{name}: overlap and rank one", pictures.layer_shares(layer))
    return Fold(
        f"{name}: pictures",
        [Pair([values, shares]), *(_heat(layer, id, name, side) for side in ("input", "output"))],
        open=index < _OPEN,
    )


def _heat(layer: LayerComparison, id: str, name: str, side: str) -> Pair:
    """The correspondence of true and approximate eigenvectors with one factor."""
    symbol = {"input": "E[xxᵀ]", "output": "E[M]"}[side]
    size = {"input": layer.inputs, "output": layer.outputs}[side]
    pair = []
    for kind, words in pictures.KINDS.items():
        panel = pictures.layer_correspondence(layer, kind, side)
        caption = f"{name}: {words} eigenvectors and {symbol}"
        rows, columns = layer.correspondences[f"{kind} {side}"].shape
        note = (
            f"Shown: {_first(columns, layer.outputs * layer.inputs)} {words} eigenvectors against "
            f"{_first(rows, size)} of {symbol}."
        )
        axes = replace(
            panel, title=caption, xlabel=f"{words} eigenvector", ylabel=f"eigenvector of {symbol}"
        )
        pair.append(Chart(f"{id}-{kind}-{side}", caption, axes, note))
    return Pair(pair)


def _first(some: int, whole: int) -> str:
    """The first ``some`` of ``whole``, in words.

    >>> _first(20, 3000), _first(6, 6)
    ('the first 20 of 3,000', 'all 6')
    """
    return f"all {whole:,}" if some >= whole else f"the first {some} of {whole:,}"
