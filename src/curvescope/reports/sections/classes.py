"""Classes: which part of G makes which outlier, and what classes do to every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from curvescope.experiments.stages import class_layers, class_structure
from curvescope.experiments.stages.class_layers import ClassLayerFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.store import RunDirectory
from curvescope.reports import charts
from curvescope.reports.blocks import Block, Chart, Fold, Pair, Section, Table, Text, short
from curvescope.structure.outliers import SHARES

_SHOWN = 150
_OPEN = 1
_WORDS = {
    "global": "global mean",
    "class": "class means",
    "cross": "cross-class means",
    "diagonal": "c = c′",
    "within": "within classes",
}
_COLOURS = {
    "global": "purple",
    "class": "blue",
    "cross": "vermilion",
    "diagonal": "orange",
    "within": "green",
}
_MATRICES = {"G": "vermilion", "KFAC": "purple", "CFAC": "sky"}


def build(run: RunDirectory) -> Section | None:
    """The class structure of G and of the layers, as far as it is finished."""
    if not run.has("classes"):
        return None
    stage = run.stage("classes")
    whole = class_structure.restore(stage)
    stages = [run.stage(name) for name in run.stages if name.startswith("classes-")]
    layers = [found for each in stages if (found := class_layers.restore(each)) is not None]
    reasons = [stage.values["left out"]] if whole is None else []
    reasons += [each.values["left out"] for each in stages if each.values["left out"]]
    blocks: list[Block] = []
    if whole is not None:
        blocks += [_groups(whole), Pair(_pictures(whole))]
    if layers:
        blocks.append(_layers(layers))
        blocks += [_fold(layer, index, len(layers)) for index, layer in enumerate(layers)]
    blocks += [Text(f"Left out: {reason}") for reason in dict.fromkeys(reasons)]
    return Section("classes", "Classes", _seen(whole, layers), _expected(whole), blocks)


def _seen(whole: ClassFindings | None, layers: Sequence[ClassLayerFindings]) -> str:
    text = ""
    if whole is not None:
        makers = [
            f"{group.outliers} by the {_WORDS[group.name]}"
            if group.name != "within"
            else f"{group.outliers} by the spread within classes"
            for group in whole.attribution.groups
            if group.outliers
        ]
        text = f"{whole.attribution.outliers} eigenvalues of G stand outside its bulk"
        text += f", {', '.join(makers)}" if makers else ""
    if layers:
        better = sum(
            layer.errors["CFAC"].frobenius < layer.errors["KFAC"].frobenius for layer in layers
        )
        text += "; " if text else ""
        text += f"CFAC is closer to G than KFAC in {better} of {len(layers)} layers"
    return (text or "The class structure could not be had; the reasons are below") + "."


def _expected(whole: ClassFindings | None) -> str:
    C = "C" if whole is None else str(whole.attribution.classes)
    count = "C − 1" if whole is None else str(whole.attribution.classes - 1)
    return (
        f"With {C} classes, one outlier comes from the global mean of the gradients, {count} more "
        "from the class means, a group of about C² from the cross-class means, and the bulk from "
        "the spread within; CFAC, which pairs features and errors class by class, follows G's "
        "spectrum better than KFAC, most of all in deep layers (Papyan, sec. 1.6, 6.1 and 7.11)."
    )


def _groups(whole: ClassFindings) -> Table:
    rows = [
        [
            _WORDS[group.name],
            str(group.expected) if group.expected else "–",
            str(group.outliers),
            str(group.subtracted),
            str(group.projected),
        ]
        for group in whole.attribution.groups
    ]
    head = ["part of G", "in the paper", "outliers made", "gone by subtraction", "by projection"]
    return Table("Outliers of G and what makes them", head, rows)


def _pictures(whole: ClassFindings) -> list[Chart]:
    attribution = whole.attribution
    values, shares = attribution.values[:_SHOWN], attribution.shares[:_SHOWN]
    makers = shares.argmax(1)
    lines: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(SHARES):
        chosen = (makers == i).nonzero().flatten()
        if len(chosen):
            lines[_WORDS[name]] = {
                "x": chosen + 1,
                "y": values[chosen],
                "kind": "points",
                "colour": _COLOURS[name],
            }
    ends = [1, len(values)]
    edge = [attribution.edge] * 2
    lines["edge of the bulk"] = {"x": ends, "y": edge, "dashed": True, "colour": "grey"}
    found = [
        Chart(
            "attribution",
            "Eigenvalues of G by the part that makes most of each",
            charts.line_chart(
                lines, title="Attributed eigenvalues of G", x="index", y="eigenvalue", log=True,
                toggles=True,
            ),
        )
    ]  # fmt: skip
    if len(whole.whole):
        found.append(_knockouts(whole))
    return found


def _knockouts(whole: ClassFindings) -> Chart:
    """The sorted eigenvalues of G with each part subtracted: what disappears was made by it."""
    curves = [("G", whole.whole, "ink")]
    for part, values in whole.without.items():
        curves.append((f"G without {_WORDS[part]}", values, _COLOURS[part]))
    lines = {}
    for name, values, colour in curves:
        positive = values[values > 1e-10 * whole.whole[0]]
        lines[name] = {"x": _index(positive), "y": positive, "colour": colour}
    spec = charts.line_chart(
        lines,
        title="Knockouts of G",
        x="index",
        y="eigenvalue",
        log=True,
        toggles=True,
        across=True,
    )
    return Chart("knockouts", "All eigenvalues of G with each part taken away", spec)


def _layers(layers: Sequence[ClassLayerFindings]) -> Table:
    rows = []
    for layer in layers:
        features, errors = layer.moments["features"], layer.moments["errors"]
        rows.append(
            [
                layer.name or "the model itself",
                f"{features.outliers}",
                _factor(features.separation),
                _factor(features.whitening),
                f"{errors.outliers}",
                _factor(errors.separation),
                f"{layer.errors['KFAC'].frobenius:.3f}",
                f"{layer.errors['CFAC'].frobenius:.3f}",
                f"{layer.class_cosine:.3f}",
            ]
        )
    head = [
        "layer",
        "feature outliers",
        "separation",
        "whitening",
        "error outliers",
        "separation",
        "KFAC error",
        "CFAC error",
        "cos(g_c, δ_c ⊗ h_c)",
    ]
    return Table("Layers by class", head, rows, heading="Layers")


def _factor(value: float) -> str:
    """A ratio; beyond all bounds where nothing but rounding is left below."""
    return "∞" if value > 1e9 else short(value, 3)


def _fold(layer: ClassLayerFindings, index: int, count: int) -> Fold:
    """The last layer, where the paper has the clearest picture, is unfolded."""
    name, id = layer.name or "the model itself", f"class{index}"
    densities = charts.line_chart(
        {matrix: {"x": layer.centres, "y": values} for matrix, values in layer.densities.items()},
        title=f"Spectra of G, KFAC and CFAC of {name}",
        x="eigenvalue",
        y="density per decade",
        log=True,
        toggles=True,
        across=True,
    )
    moments = []
    for kind, moment in layer.moments.items():
        lines: dict[str, dict[str, Any]] = {
            "all": {"x": _index(moment.total), "y": moment.total},
            "class part": {"x": _index(moment.class_), "y": moment.class_, "kind": "points"},
        }
        if kind == "errors":
            both = moment.class_and_cross
            lines["class and cross part"] = {"x": _index(both), "y": both, "kind": "points"}
        spec = charts.line_chart(
            lines, title=f"{kind} of {name}", x="index", y="eigenvalue", log=True, toggles=True
        )
        moments.append(Chart(f"{id}-{kind}", f"{name}: second moment of the {kind}", spec))
    return Fold(
        f"{name}: pictures",
        [Chart(f"{id}-cfac", f"{name}: exact G, KFAC and CFAC", densities), Pair(moments)],
        open=index >= count - _OPEN,
    )


def _index(values: torch.Tensor) -> list[int]:
    return list(range(1, len(values) + 1))
