"""Loss and error of a model on a split, and the norms of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.problem import Problem
from curvescope.problem.batches import Batches
from curvescope.problem.losses import Terms
from curvescope.spectra.control import Status
from curvescope.spectra.estimate import Estimate, Samples


@dataclass(frozen=True)
class Scores:
    """Mean loss and share of wrong answers of the ``samples`` terms of a split.

    Both are exact for the split; ``stderr`` is their error as estimates of the mean over the
    distribution that the split was drawn from (infinite for a callable loss, which does not show
    its terms). ``error`` is None where a loss has no right answers (``"mse"``, callables); every
    term counts the same in it.
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
    >>> found = scores(Problem(model, data))
    >>> round(found.error.value, 4), found.samples
    (0.3333, 3)
    """
    variables = problem.variables()
    total, weight, samples = torch.zeros((), dtype=torch.float64, device=problem.device), 0.0, 0
    shown: list[Terms | None] = []
    for batch in problem.batches():
        with problem.evaluation():
            z = problem.output(variables, batch).detach()
        at = problem.loss_at(z, batch)
        total, weight = total + at.value().double(), weight + at.weight
        samples += at.count
        shown.append(at.each())
    if weight == 0.0:
        raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
    value = float(total / weight)
    terms = [own for own in shown if own is not None]
    stderr = _stderr(terms, value) if len(terms) == len(shown) else float("inf")
    return Scores(Estimate(value, stderr, 0, samples), _error(terms), samples)


def _stderr(terms: Sequence[Terms], mean: float) -> float:
    """The error of a weighted mean, ``√(n/(n − 1) Σ w² (ℓ − L)²) / Σ w``."""
    losses = torch.cat([own.losses.double() for own in terms])
    weights = torch.cat([own.weights.double() for own in terms])
    n = len(losses)
    if n < 2:
        return float("inf")
    spread = float((weights * (losses - mean)).norm())
    return (n / (n - 1)) ** 0.5 * spread / float(weights.sum())


def _error(terms: Sequence[Terms]) -> Estimate[float] | None:
    """The share of wrong answers, where there are right ones."""
    wrong = [own.wrong for own in terms if own.wrong is not None]
    samples = Samples((), wrong[0].device) if wrong else None
    for misses in wrong:
        if samples is not None and len(misses):
            samples.add(misses.double())
    return samples.estimate(0, Status.DONE) if samples is not None and samples.count else None


def on_other_data(
    problem: Problem, data: Any, *, mode: str | None = None, model: nn.Module | None = None
) -> Problem:
    """The same loss and variables with other data, in another mode, or of another model."""
    return Problem(
        problem.model if model is None else model,
        _Pairs(data) if isinstance(data, Batches) else data,
        problem.loss,
        params=list(problem.params.names),
        mode=mode or problem.mode,
    )


class _Pairs:
    """A problem's own batches, as data for another problem."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for batch in self._batches:
            yield batch.inputs, batch.target

    def __len__(self) -> int:
        if self._batches.length is None:
            raise TypeError("the data does not know its length")
        return self._batches.length


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
    >>> norms = weight_norms(Problem(model, (torch.eye(2), torch.zeros(2, 1)), "mse"))
    >>> norms.norm, norms.by_parameter
    (13.0, {'weight': 5.0, 'bias': 12.0})
    """
    parts = {
        name: float(torch.linalg.vector_norm(p.detach(), dtype=torch.float64))
        for name, p in problem.variables().items()
    }
    return WeightNorms(sum(value**2 for value in parts.values()) ** 0.5, parts)
