"""Class and cross-class structure: which part of G makes which outlier (CC-2, CC-3, CC-7)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.experiments.checks import Check
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome, Stage
from curvescope.linearisation.extended import class_directions
from curvescope.operators.gram import GramForm
from curvescope.spectra.exact import ExactSpectrum
from curvescope.structure.knockouts import class_dual
from curvescope.structure.outliers import Attribution, Group, attribute_outliers, outliers_of

_KEPT = 400
"""Eigenvalues with their shares that are kept."""
_FEW = 4
"""Outliers alone come from a Gram matrix of so many times the rows that all eigenvalues do."""
PARTS = ("class", "cross", "within")


@dataclass(frozen=True)
class ClassFindings:
    """The attribution of outliers, and the spectrum of G with each part taken away."""

    attribution: Attribution
    whole: Tensor  # eigenvalues of G, descending
    without: dict[str, Tensor]  # part -> eigenvalues of G less that part, descending


def compute(context: Context) -> Outcome:
    """Attribute the outliers of G; without a class structure, say why there is none."""
    try:
        return _compute(context)
    except CurvescopeError as error:
        return Outcome({"left out": str(error)})


def _compute(context: Context) -> Outcome:
    problem, rows = context.problem, context.settings.class_rows
    generator = context.generator("attribution")
    size = GramForm(problem, class_directions).size
    dual = class_dual(problem) if size <= _FEW * rows else None
    if dual is None:
        attribution = attribute_outliers(problem, limit=0, generator=generator)
    else:
        attribution = outliers_of(dual, generator=generator)
    values: dict[str, Any] = {
        "left out": None,
        "classes": attribution.classes,
        "edge": attribution.edge,
        "groups": [asdict(group) for group in attribution.groups],
        "exact": attribution.exact,
    }
    arrays = {
        "values": attribution.values[:_KEPT].double(),
        "shares": attribution.shares[:_KEPT].double(),
    }
    checks = [_shares(arrays["shares"])]
    if dual is not None and size <= rows:
        arrays["whole"] = _descending(dual.spectrum())
        for part in PARTS:
            arrays[f"without {part}"] = _descending(dual.knocked_out(part))
        checks.append(_sum(arrays))
    return Outcome(values, arrays, tuple(checks))


def _descending(spectrum: ExactSpectrum) -> Tensor:
    return spectrum.values.flip(0).clone()


def _shares(shares: Tensor) -> Check:
    """The parts share each eigenvalue completely."""
    worst = float((shares.sum(1) - 1).abs().max())
    return Check(f"the parts of G share each eigenvalue up to {worst:.1e}", worst < 1e-3)


def _sum(arrays: dict[str, Tensor]) -> Check:
    """Traces: ``tr(G ⊖ within)`` is that of the other parts, and the two together are ``tr G``."""
    total = float(arrays["whole"].sum())
    removed = sum(total - float(arrays[f"without {part}"].sum()) for part in PARTS)
    gap = 1 - removed / total if total else 0.0
    return Check(
        f"class, cross and within part have {removed:.6g} of tr G = {total:.6g}; the rest, "
        f"{gap:.2%}, is the part c = c'",
        -1e-6 < gap < 1,
    )


def restore(stage: Stage) -> ClassFindings | None:
    """What was found; nothing where the stage says why it was left out."""
    values, arrays = stage.values, stage.arrays
    if values["left out"] is not None:
        return None
    attribution = Attribution(
        values["classes"],
        values["edge"],
        arrays["values"],
        arrays["shares"],
        tuple(Group(**group) for group in values["groups"]),
        values["exact"],
    )
    without = {part: arrays[f"without {part}"] for part in PARTS if f"without {part}" in arrays}
    return ClassFindings(attribution, arrays.get("whole", torch.empty(0)), without)
