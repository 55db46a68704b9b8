"""What the classes do to every layer: features, errors, KFAC and CFAC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from curvescope.experiments.stages.class_layers import ClassLayerFindings, Moment
from curvescope.reports import charts
from curvescope.reports.blocks import Chart, Fold, Pair, Table, factor, percent, short
from curvescope.reports.sections.subject import listed

_OPEN = 1
_MATRICES: dict[str, dict[str, Any]] = {
    "G": {"colour": "vermilion", "width": 3.2},
    "KFAC": {"colour": "purple", "dash": "7 3"},
    "CFAC": {"colour": "blue", "dash": "2 3"},
}
ROUNDING = 1e-10
"""Eigenvalues below this part of the largest are zero up to rounding."""


def layers_table(layers: Sequence[ClassLayerFindings]) -> Table:
    """Outliers and separation of features and errors, and how near KFAC and CFAC are to G."""
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


def layer_fold(layer: ClassLayerFindings, index: int, layers: int) -> Fold:
    """The last layer, where the paper has the clearest picture, is unfolded."""
    name, id = layer.name or "the model itself", f"class{index}"
    densities = charts.line_chart(
        {
            matrix: {"x": layer.centres, "y": layer.densities[matrix], **_MATRICES[matrix]}
            for matrix in ("CFAC", "KFAC", "G")
        },
        title=f"Spectra of G, KFAC and CFAC of {name}",
        x="eigenvalue",
        y="share per decade",
        log=True,
        toggles=True,
        across=True,
    )
    caption = f"{name}: exact G, KFAC and CFAC"
    moments = [_moment(kind, moment, id, name) for kind, moment in layer.moments.items()]
    return Fold(
        f"{name}: pictures",
        [Chart(f"{id}-cfac", caption, densities, _below(layer)), Pair(moments)],
        open=index >= layers - _OPEN,
    )


def _below(layer: ClassLayerFindings) -> str:
    """What a logarithmic axis cannot show."""
    if not layer.below:
        return ""
    shares = ", ".join(f"{percent(share)} of {name}" for name, share in layer.below.items())
    text = f"Left of the axis, below {short(layer.floor, 2)} or zero: {shares}."
    if layer.sampled:
        text += f" {listed(layer.sampled)}: a Lanczos quadrature, the others all eigenvalues."
    return text


def _moment(kind: str, moment: Moment, id: str, name: str) -> Chart:
    """The eigenvalues of a second moment and of its class parts, without those that are zero."""
    parts = {"all": moment.total, "class part": moment.class_}
    if kind == "errors":
        parts["class and cross part"] = moment.class_and_cross
    lines: dict[str, dict[str, Any]] = {}
    zeros = []
    for words, values in parts.items():
        positive = values[values > ROUNDING * moment.total[0]]
        lines[words] = {"x": index_of(positive), "y": positive}
        if words != "all":
            lines[words]["kind"] = "points"
        elif len(positive) < len(values):
            zeros.append(f"{len(values) - len(positive)} of the first {len(values)} are zero")
    spec = charts.line_chart(
        lines, title=f"{kind} of {name}", x="index", y="eigenvalue", log=True, toggles=True
    )
    note = f"{zeros[0]} up to rounding and not shown." if zeros else ""
    return Chart(f"{id}-{kind}", f"{name}: second moment of the {kind}", spec, note)


def index_of(values: Tensor) -> list[int]:
    """1, 2, … for so many values."""
    return list(range(1, len(values) + 1))
