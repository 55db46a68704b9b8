"""One network at many learning rates, and the rate that is best (TR D.1).

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _checks, io
from curvescope._state import copied, evaluated
from curvescope.errors import CurvescopeError
from curvescope.problem.losses import Loss
from curvescope.training.loop import Tell, train_many
from curvescope.training.objective import evaluate, home
from curvescope.training.recipe import Recipe
from curvescope.training.run import Trained

Score = Callable[[Trained], float]
"""How good a run is: the smaller, the better; NaN is as bad as can be."""


def learning_rates(
    count: int = 100, *, largest: float = 0.25, smallest: float = 0.0001
) -> tuple[float, ...]:
    """Rates with a constant ratio, from the largest to the smallest; TR D.1's by default.

    TR takes 100 of them for convolutional networks and 25 for fully connected ones.

    >>> [round(rate, 4) for rate in learning_rates(4, largest=0.1, smallest=0.0001)]
    [0.1, 0.01, 0.001, 0.0001]
    """
    where = "learning_rates"
    count = _checks.positive_int(where, "count", count)
    for name, value in (("largest", largest), ("smallest", smallest)):
        if not _checks.finite_float(where, name, value) > 0:
            raise CurvescopeError(where, f"`{name}` must be positive", given=value)
    if smallest > largest:
        rule = "`smallest` must not exceed `largest`"
        raise CurvescopeError(where, rule, given=f"{smallest} and {largest}")
    steps = max(count - 1, 1)
    middle = [largest * (smallest / largest) ** (i / steps) for i in range(1, count - 1)]
    return (largest, *middle, smallest)[:count]


def error_on_test(trained: Trained) -> float:
    """The share of wrong predictions on the test data after the last epoch (TR D.1).

    >>> from curvescope.training.objective import Fit
    >>> error_on_test(Trained(Recipe(seed=0, epochs=1), (), None, Fit(0.5, 0.75), None, None))
    0.25
    """
    if trained.test is None:
        raise CurvescopeError("error_on_test", "the run has no test data", remedy="give `test`")
    return 1 - trained.test.accuracy


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep in the order of their rates, with their scores.

    A run whose loss ceased to be finite has the score ``inf`` and is never the best.
    """

    rates: tuple[float, ...]
    runs: tuple[Trained, ...]
    scores: tuple[float, ...]

    @property
    def chosen(self) -> int | None:
        """The position of the smallest score, the first of equal ones; None if all diverged."""
        best = min(self.scores)
        return None if best == inf else self.scores.index(best)

    @property
    def rate(self) -> float | None:
        """The best rate."""
        return None if self.chosen is None else self.rates[self.chosen]

    @property
    def best(self) -> Trained | None:
        """The best run."""
        return None if self.chosen is None else self.runs[self.chosen]


def sweep(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    rates: Sequence[float],
    *,
    test: Any = None,
    score: Score = error_on_test,
    folder: io.PathLike | None = None,
    resume: bool = False,
    loss: nn.Module | Callable[..., Tensor] | Loss | None = None,
    tell: Tell | None = None,
) -> Sweep:
    """Train a network from the same weights at every rate, and choose the best (TR D.1).

    Each run is one of :func:`train` with ``recipe`` at another ``lr``: same first weights, same
    order of samples. They are trained side by side on a GPU, which must hold them all, and one
    after the other elsewhere, and measured on ``test`` at the end, not after each epoch.
    Afterwards ``model`` has the weights of the best run, in evaluation mode, and its own ones if
    all runs diverged. With a ``folder`` each run has one in it; finished runs are read, so that an
    interrupted sweep goes on where it was.

    TR chooses by the error on the test data, and so does the default. The error of the chosen run
    is then the smallest of many on these data, not what new data would show: for that, give a
    validation set as ``test``.

    Args:
        model: The network with its first weights.
        data: As for :func:`train`.
        recipe: Everything but the rate.
        rates: The initial learning rates, for example :func:`learning_rates`; each once.
        test: Data to measure on, which the default score needs.
        score: A function of a finished run, the smaller the better.
        folder: Where the runs are kept.
        resume: Continue an unfinished run, as for :func:`train`.
        loss: A loss in place of the recipe's.
        tell: As for :func:`train_many`, for each group of runs that are trained together.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> model = nn.Linear(1, 2)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.tensor([[1.0], [-1.0]]))  # wrong, and to be turned
    >>> found = sweep(model, (X, y), Recipe(seed=0, epochs=20), [1e-4, 1.0], test=(X, y))
    >>> found.rate, found.scores
    (1.0, (1.0, 0.0))
    """
    where = "sweep"
    rates = tuple(_checks.finite_float(where, "each rate", rate, 0.0) for rate in rates)
    if not rates or len(set(rates)) < len(rates):
        raise CurvescopeError(where, "needs at least one rate, and each once", given=list(rates))
    if test is None and score is error_on_test:
        remedy = "give `test`, or another `score`"
        raise CurvescopeError(where, "the error on test data needs test data", remedy=remedy)
    runs: list[Trained] = []
    scores: list[float] = []
    best: nn.Module | None = None
    device = home(where, model)[0]
    together = len(rates) if device.type == "cuda" else 1
    for start in range(0, len(rates), together):
        group = rates[start : start + together]
        candidates = [copied(model) for _ in group]
        folders = None if folder is None else [Path(folder) / f"rate-{rate!r}" for rate in group]
        finished = train_many(
            candidates, data, [replace(recipe, lr=rate) for rate in group],
            folders=folders, resume=resume, loss=loss, tell=tell,
        )  # fmt: skip
        for candidate, trained in zip(candidates, finished, strict=True):
            if test is not None and trained.diverged is None:
                minimized = recipe.minimized(where) if loss is None else loss
                trained = replace(trained, test=evaluate(candidate, test, loss=minimized))
            value = inf if trained.diverged is not None else float(score(trained))
            value = inf if isnan(value) else value
            if value < min(scores, default=inf):
                best = candidate
            runs.append(trained)
            scores.append(value)
    if best is not None:
        _take_over(model, best)
    evaluated(model)
    return Sweep(rates, tuple(runs), tuple(scores))


@torch.no_grad()
def _take_over(model: nn.Module, best: nn.Module) -> None:
    """Parameters and buffers of another copy of the same model."""
    state = best.state_dict()
    for name, value in model.state_dict().items():
        value.copy_(state[name])
