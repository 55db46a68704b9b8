"""Class and cross-class structure: which part of G makes which outlier (TR sec. 5 and 6).

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from curvescope.errors import Inapplicable
from curvescope.experiments.checks import Check
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Finding, Outcome
from curvescope.operators.gram import GramForm
from curvescope.problem import Problem
from curvescope.record.extended import class_directions
from curvescope.spectra.exact import ExactSpectrum
from curvescope.structure.knockouts import class_dual
from curvescope.structure.outliers import Attribution, attribute_outliers, outliers_of

_LARGEST_COUNT = 400
"""Number of largest eigenvalues that are stored with their shares."""
GRAM_ROWS = 4
"""The outliers alone may take a Gram matrix of this many times the rows of ``class_rows``."""
PARTS = ("class", "cross", "within")


@dataclass(frozen=True)
class ClassFindings:
    """The attribution of outliers, and the spectrum of G with each part taken away.

    ``whole`` and ``without`` are empty where the Gram matrix is too large for all eigenvalues.
    """

    attribution: Attribution
    whole: Tensor  # eigenvalues of G, descending
    without: dict[str, Tensor]  # part -> eigenvalues of G less that part, descending


def compute(context: Context) -> Outcome[Finding[ClassFindings]]:
    """Attribute the outliers of G; without a class structure, the finding has the reason."""
    try:
        if context.groups is None:
            need_one_label(context.problem)
        findings = _findings(context)
    except Inapplicable as error:
        return Outcome(Finding("", None, str(error)))
    checks = [_shares(findings.attribution.shares)]
    if len(findings.whole):
        checks.append(_sum(findings))
    return Outcome(Finding("", findings), tuple(checks))


def need_one_label(problem: Problem) -> None:
    """Leave text out: its labels stand at several positions of a sample.

    Raises:
        Inapplicable: If they do. A vocabulary has as many classes as characters or words, and their
            pairs are too many to be looked at one by one.
    """
    target = next(iter(problem.data)).target
    if isinstance(target, Tensor) and target.numel() > len(target):
        rule = "labels at several positions of a sample need classes to put them into"
        given = f"{target[0].numel()} positions"
        remedy = "give `classes`, a number of most frequent labels or a map from labels to classes"
        raise Inapplicable("class structure", rule, given=given, remedy=remedy)


def _findings(context: Context) -> ClassFindings:
    problem, rows, groups = context.problem, context.settings.class_rows, context.groups
    generator = context.generator("attribution")
    size = GramForm(problem, class_directions).size
    dual = class_dual(problem, classes=groups) if size <= GRAM_ROWS * rows else None
    if dual is None:
        attribution = attribute_outliers(problem, classes=groups, limit=0, generator=generator)
    else:
        attribution = outliers_of(dual, generator=generator)
    attribution = replace(
        attribution,
        values=attribution.values[:_LARGEST_COUNT].double(),
        shares=attribution.shares[:_LARGEST_COUNT].double(),
    )
    if dual is None or size > rows:
        return ClassFindings(attribution, torch.empty(0), {})
    without = {part: _descending(dual.knocked_out(part)) for part in PARTS}
    return ClassFindings(attribution, _descending(dual.spectrum()), without)


def _descending(spectrum: ExactSpectrum) -> Tensor:
    return spectrum.values.flip(0).clone()


def _shares(shares: Tensor) -> Check:
    """The shares of the parts sum to one for each eigenvalue."""
    worst = float((shares.sum(1) - 1).abs().max())
    return Check(f"the parts of G share each eigenvalue up to {worst:.1e}", worst < 1e-3)


def _sum(findings: ClassFindings) -> Check:
    """Traces: ``tr(G ⊖ within)`` is that of the other parts, and the two together are ``tr G``."""
    total = float(findings.whole.sum())
    removed = sum(total - float(values.sum()) for values in findings.without.values())
    gap = 1 - removed / total if total else 0.0
    return Check(
        f"class, cross and within part have {removed:.6g} of tr G = {total:.6g}; the rest, "
        f"{gap:.2%}, is the part c = c'",
        -1e-6 < gap < 1,
    )
