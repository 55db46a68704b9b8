"""Classes for a large vocabulary: its most frequent tokens, and all others."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.problem import Problem
from curvescope.record.extended import extended


def frequent_classes(problem: Problem, k: int) -> Tensor:
    """The class of every output: ``0 … k − 1`` for the ``k`` most frequent labels, else ``k``.

    The most frequent first; of equally frequent ones the smaller label. For ``classes=`` of
    :func:`class_structure`. Cost: a forward pass over the data.

    Args:
        problem: cross-entropy with class labels, at every position or one a sample.
        k: how many classes of one label; fewer than there are outputs.

    >>> from torch import nn
    >>> X, y = torch.ones(6, 1), torch.tensor([3, 1, 3, 3, 0, 1])
    >>> frequent_classes(Problem(nn.Linear(1, 5), (X, y)), 2)
    tensor([2, 1, 2, 0, 2])
    """
    where = "frequent_classes"
    k = _checks.positive_int(where, "k", k)
    problem.check_unchanged()
    counts: Tensor | None = None
    for batch in problem.batches():
        with problem.evaluation():
            z = problem.output(problem.variables(), batch).detach()
        classes = extended(problem.loss, z, batch.target, where)
        if counts is None:
            counts = torch.zeros(classes.classes, dtype=torch.int64, device=z.device)
        labels = classes.labels[classes.labels >= 0]
        counts += labels.bincount(minlength=len(counts))
    assert counts is not None, "a problem has at least one batch"
    problem.sum_(counts)
    if k >= len(counts):
        rule = f"`k` must be smaller than the {len(counts)} outputs"
        raise CurvescopeError(where, rule, given=k)
    order = counts.sort(descending=True, stable=True).indices
    result = torch.full_like(counts, k)
    result[order[:k]] = torch.arange(k, device=counts.device)
    return result.cpu()
