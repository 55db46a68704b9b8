"""Classes: which part of G makes which outlier, and what classes do to every layer."""

from __future__ import annotations

from collections.abc import Sequence

from curvescope.experiments.stages.class_layers import ClassLayerFindings, FactorFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.store import Finding, RunDirectory
from curvescope.figures import stages as pictures
from curvescope.figures import structure
from curvescope.reports.blocks import Block, Chart, Pair, Section, Table, Text
from curvescope.reports.sections.class_pictures import (
    layer_fold,
    layers_table,
)
from curvescope.reports.sections.subject import count, listed

_SAME = 0.005
"""Relative distances up to this one count as zero."""
_WORDS = {
    "global": "global mean",
    "class": "class means",
    "cross": "cross-class means",
    "diagonal": "c = c′",
    "within": "within classes",
}
_MAKERS = {**_WORDS, "diagonal": "part c = c′", "within": "spread within classes"}


def build(run: RunDirectory) -> Section | None:
    """The section of the class structure of G and of the layers; None while neither is finished."""
    if not run.has("classes"):
        return None
    finding = run.result("classes", Finding[ClassFindings])
    whole = finding.value
    each = [
        run.result(name, Finding[ClassLayerFindings])
        for name in run.stages
        if name.startswith("classes-")
    ]
    layers = [layer.value for layer in each if layer.value is not None]
    reasons = [finding.left_out] if whole is None else []
    reasons += [layer.left_out for layer in each if layer.value is None]
    blocks: list[Block] = []
    if (note := run.config.classes) is not None and (whole is not None or layers):
        blocks.append(Text(f"The {note.count} classes are {note.words}."))
    if whole is not None:
        blocks += [_groups(whole), Pair(_pictures(whole))]
    if layers:
        blocks.append(layers_table(layers))
        blocks += [layer_fold(layer, index, len(layers)) for index, layer in enumerate(layers)]
    blocks += [Text(f"Left out: {reason}") for reason in dict.fromkeys(reasons)]
    return Section(
        "classes",
        "Classes",
        _observation(whole, layers),
        _claim(whole),
        blocks,
        assessment=_assessment(whole, layers),
    )


def _observation(whole: ClassFindings | None, layers: Sequence[ClassLayerFindings]) -> str:
    text = ""
    if whole is not None:
        makers = [
            f"{group.outliers} by the {_MAKERS[group.name]}"
            for group in whole.attribution.groups
            if group.outliers
        ]
        n = whole.attribution.outliers
        text = f"{count(n, 'eigenvalue')} of G {'lies' if n == 1 else 'lie'} above the edge of its "
        text += f"bulk, made mostly: {listed(makers)}" if makers else "bulk"
    if factors := _factors(layers):
        better = sum(each.errors["CFAC"].frobenius < each.errors["KFAC"].frobenius
                     for each in factors)  # fmt: skip
        text += "; " if text else ""
        text += f"CFAC is closer to G than KFAC in {better} of {len(factors)} layers"
    text = text or "the class structure could not be had; the reasons are below"
    return f"{text[0].upper()}{text[1:]}."


def _factors(layers: Sequence[ClassLayerFindings]) -> list[FactorFindings]:
    return [layer.factors for layer in layers if layer.factors is not None]


def _claim(whole: ClassFindings | None) -> str:
    C = "C" if whole is None else str(whole.attribution.classes)
    means = "C − 1" if whole is None else str(whole.attribution.classes - 1)
    cross = "C(C − 1)" if whole is None else str(int(C) * (int(C) - 1))
    return (
        f"With {C} classes, one outlier comes from the global mean of the gradients, {means} more "
        f"from the class means, a group of about {cross} from the cross-class means, and the bulk "
        "from the spread within (Papyan, “Traces of Class/Cross-Class Structure”, sec. 1.6 and "
        "6.1); in deep layers CFAC, which pairs features and errors class by class, follows G’s "
        "spectrum much better than KFAC, in shallow ones it depends on the data (sec. 7.11)."
    )


def _assessment(whole: ClassFindings | None, layers: Sequence[ClassLayerFindings]) -> str:
    """How far the run agrees with the paper."""
    parts = []
    if whole is not None:
        C = whole.attribution.classes
        groups = {group.name: group for group in whole.attribution.groups}
        means = groups["global"].outliers + groups["class"].outliers
        gone = groups["global"].projected + groups["class"].projected
        parts.append(
            f"Of the {C} outliers that the paper gives to global and class means, {_are(means)} "
            f"made mostly by them here, and {_are(gone)} gone when their span is projected out"
        )
    if layers and (factors := layers[-1].factors) is not None:
        last = layers[-1]
        errors = {name: error.frobenius for name, error in factors.errors.items()}
        nearer = "nearer to G" if errors["CFAC"] < errors["KFAC"] else "no nearer to G"
        words = f"CFAC is {nearer} than KFAC"
        if max(errors.values()) < _SAME:
            words = "KFAC and CFAC are both as good as G itself"
        parts.append(
            f"in the last layer ({last.name or 'the model itself'}), {words} (off by "
            f"{errors['CFAC']:.2f} against {errors['KFAC']:.2f} of G in the Frobenius norm)"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _are(n: int) -> str:
    return "none is" if n == 0 else f"{n} {'is' if n == 1 else 'are'}"


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
    panel = structure.attribution(whole.attribution)
    count = sum(len(curve.x) for curve in panel.curves if curve.kind == "points")
    caption = f"The {count} largest eigenvalues of G by the part that makes most of each"
    charts = [Chart("attribution", caption, panel)]
    if len(whole.whole):
        charts.append(_knockouts(whole))
    return charts


def _knockouts(whole: ClassFindings) -> Chart:
    """The sorted eigenvalues of G with each part subtracted, and how many each leaves."""
    panel = pictures.knockouts(whole)
    left = ", ".join(f"{curve.label} {len(curve.x):,}" for curve in panel.curves)
    note = f"Eigenvalues above 10⁻¹⁰ of the largest, the others being rounding: {left}."
    return Chart("knockouts", "All eigenvalues of G with each part taken away", panel, note)
