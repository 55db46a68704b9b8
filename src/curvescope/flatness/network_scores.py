"""Loss and error of a model on a split, and the norms of its weights.

References:
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from curvescope.problem import Problem
from curvescope.problem.losses import Terms
from curvescope.ranks import GroupLike
from curvescope.spectra.control import Status
from curvescope.spectra.estimate import Estimate, Samples


@dataclass(frozen=True)
class Scores:
    """Mean loss and share of wrong answers of the ``samples`` terms of a split.

    Both are exact for the split; ``stderr`` is their error as estimates of the mean over the
    distribution that the split was drawn from (infinite for a callable loss, whose terms are not
    available). ``error`` is None for a loss without predicted labels (``"mse"``, callables); every
    term has the same weight in it.
    """

    loss: Estimate[float]
    error: Estimate[float] | None
    samples: int


def scores(problem: Problem) -> Scores:
    """Loss and error over the problem's data, in its mode; one forward pass.

    A class is predicted by the largest output, the first of several; one of two classes by the
    sign.

    >>> model = nn.Linear(1, 2, bias=False)
    >>> _ = model.weight.detach().copy_(torch.tensor([[1.0], [0.0]]))
    >>> data = (torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([0, 1, 1]))
    >>> result = scores(Problem(model, data))
    >>> round(result.error.value, 4), result.samples
    (0.3333, 3)
    """
    variables = problem.variables()
    total, weight, samples = torch.zeros((), dtype=torch.float64, device=problem.device), 0.0, 0
    all_terms: list[Terms | None] = []
    for batch in problem.batches():
        with problem.evaluation():
            z = problem.output(variables, batch).detach()
        at = problem.loss_at(z, batch)
        total, weight = total + at.value().double(), weight + at.weight
        samples += at.count
        all_terms.append(at.each())
    value, samples = float(problem.mean_(total, weight)), int(problem.count(samples))
    terms = [batch_terms for batch_terms in all_terms if batch_terms is not None]
    known = problem.group.agree(len(terms) == len(all_terms))
    stderr = _stderr(problem, terms, value) if known else float("inf")
    return Scores(Estimate(value, stderr, 0, samples), _error(problem, terms), samples)


def _stderr(problem: Problem, terms: Sequence[Terms], mean: float) -> float:
    """The error of a weighted mean, ``√(n/(n − 1) Σ w² (ℓ − L)²) / Σ w``."""
    losses = problem.concatenate(torch.cat([batch_terms.losses.double() for batch_terms in terms]))
    weights = problem.concatenate(
        torch.cat([batch_terms.weights.double() for batch_terms in terms])
    )
    n = len(losses)
    if n < 2:
        return float("inf")
    spread = float((weights * (losses - mean)).norm())
    return (n / (n - 1)) ** 0.5 * spread / float(weights.sum())


def _error(problem: Problem, terms: Sequence[Terms]) -> Estimate[float] | None:
    """The fraction of wrong predictions; None for a loss without predicted labels."""
    wrong = [batch_terms.wrong for batch_terms in terms if batch_terms.wrong is not None]
    if not problem.group.agree(bool(wrong)):
        return None
    misses = problem.concatenate(torch.cat(wrong).double())
    samples = Samples((), misses.device)
    if len(misses):
        samples.add(misses)
    return samples.estimate(0, Status.DONE) if samples.count else None


def on_other_data(
    problem: Problem,
    data: Any,
    *,
    mode: str | None = None,
    model: nn.Module | None = None,
    group: GroupLike = True,
) -> Problem:
    """The same loss and variables with other data, in another mode, or of another model.

    The data are those of this rank, as the problem's are, unless another ``group`` is given.
    """
    return Problem(
        problem.model if model is None else model,
        data,
        loss=problem.loss,
        params=list(problem.params.names),
        mode=mode or problem.mode,
        group=problem.group if group is True else group,
    )


@dataclass(frozen=True)
class WeightNorms:
    """``‖w‖₂`` over the problem's variables, its square, and the norm of each parameter."""

    norm: float
    by_parameter: dict[str, float]

    @property
    def squared(self) -> float:
        """``‖w‖²``, the term of weight decay and of PP eq. 7."""
        return self.norm**2


def weight_norms(problem: Problem) -> WeightNorms:
    """Norms of the problem's variables, summed in float64.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.weight.detach().copy_(torch.tensor([[3.0, 4.0]])), model.bias.detach().fill_(12.0)
    >>> norms = weight_norms(Problem(model, (torch.eye(2), torch.zeros(2, 1)), loss="mse"))
    >>> norms.norm, norms.by_parameter
    (13.0, {'weight': 5.0, 'bias': 12.0})
    """
    parts = {
        name: float(torch.linalg.vector_norm(p.detach(), dtype=torch.float64))
        for name, p in problem.variables().items()
    }
    return WeightNorms(sum(value**2 for value in parts.values()) ** 0.5, parts)
