"""Pictures of the class structure of each layer: features, errors, KFAC and CFAC."""

from __future__ import annotations

from collections.abc import Sequence

from curvescope._numbers import percent, short
from curvescope.experiments.stages.class_layers import ClassLayerFindings, FactorFindings
from curvescope.figures import stages as pictures
from curvescope.figures import structure
from curvescope.reports.blocks import Chart, Fold, Pair, Table, factor
from curvescope.reports.sections.subject import listed

_OPEN = 1


def layers_table(layers: Sequence[ClassLayerFindings]) -> Table:
    """Outliers and separation of features and errors, and the distances of KFAC and CFAC from G."""
    rows = []
    for layer in layers:
        features, errors = layer.moments["features"], layer.moments["errors"]
        rows.append(
            [
                layer.name or "the model itself",
                f"{features.outliers}",
                factor(features.separation),
                factor(features.whitening),
                f"{errors.outliers}",
                factor(errors.separation),
                *_factor_columns(layer.factors),
            ]
        )
    factors = any(layer.factors is not None for layer in layers)
    head = [
        "layer",
        "feature outliers",
        "separation",
        "whitening",
        "error outliers",
        "separation",
        *(("KFAC error", "CFAC error", "cos(g_c, δ_c ⊗ h_c)") if factors else ()),
    ]
    return Table("Layers by class", head, rows, heading="Layers")


def _factor_columns(findings: FactorFindings | None) -> list[str]:
    if findings is None:
        return []
    errors = [f"{findings.errors[name].frobenius:.3f}" for name in ("KFAC", "CFAC")]
    return [*errors, f"{findings.class_cosine:.3f}"]


def layer_fold(layer: ClassLayerFindings, index: int, layers: int) -> Fold:
    """The last layer, where the paper has the clearest picture, is unfolded."""
    name, id = layer.name or "the model itself", f"class{index}"
    caption = f"{name}: exact G, KFAC and CFAC"
    charts: list[Chart | Pair] = [Pair([_moment(layer, kind, id, name) for kind in layer.moments])]
    if (factors := layer.factors) is not None:
        panel = pictures.factors(layer.name, factors)
        charts.insert(0, Chart(f"{id}-cfac", caption, panel, _below(factors)))
    return Fold(f"{name}: pictures", charts, open=index >= layers - _OPEN)


def _below(findings: FactorFindings) -> str:
    """A note on the eigenvalues that the logarithmic axis cannot show."""
    if not findings.below:
        return ""
    shares = ", ".join(f"{percent(share)} of {name}" for name, share in findings.below.items())
    text = f"Left of the axis, below {short(findings.floor, 2)} or zero: {shares}."
    if findings.sampled:
        text += f" {listed(findings.sampled)}: a Lanczos quadrature, the others all eigenvalues."
    return text


def _moment(layer: ClassLayerFindings, kind: str, id: str, name: str) -> Chart:
    """The eigenvalues of a second moment, with a word on those that are zero."""
    total = layer.moments[kind].total
    zeros = int((total <= structure.ROUNDING * total[0]).sum())
    note = ""
    if zeros:
        note = f"{zeros} of the first {len(total)} are zero up to rounding and not shown."
    caption = f"{name}: second moment of the {kind}"
    return Chart(f"{id}-{kind}", caption, pictures.moment(layer, kind), note)
