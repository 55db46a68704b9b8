"""The first stage: sizes of the network, losses and errors, norms of weights and gradient."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from curvescope._checks import AnyFloat
from curvescope.experiments.checks import Check
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome
from curvescope.flatness.network_scores import scores, weight_norms
from curvescope.problem import Problem

_STEPS = 4
"""Lengths over which the slope of the loss is measured."""


@dataclass(frozen=True)
class SplitFit:
    """Mean loss, and error rate where the loss defines one."""

    samples: int
    loss: AnyFloat
    error: float | None


@dataclass(frozen=True)
class Overview:
    """The network, its sizes and norms, and how it fits each split."""

    parameters: int
    outputs: int
    classes: int | None  # of the loss; None if it has none
    layers: dict[str, int]  # parameters of each
    weight_norm: float
    gradient_norm: float
    train: SplitFit
    test: SplitFit | None

    @property
    def fits(self) -> dict[str, SplitFit]:
        """The fit on each split that was measured."""
        splits = {"train": self.train, "test": self.test}
        return {name: fit for name, fit in splits.items() if fit is not None}


def compute(context: Context) -> Outcome[Overview]:
    """Sizes, norms of weights and gradient, and the fit on both splits; a few passes over each."""
    problem = context.problem
    gradient = problem.gradient().double()
    overview = Overview(
        parameters=problem.params.size,
        outputs=context.outputs,
        classes=problem.loss.classes(context.outputs),
        layers={layer: _size(problem, layer) for layer in problem.params.layers},
        weight_norm=weight_norms(problem).norm,
        gradient_norm=float(gradient.norm()),
        train=_fit(problem),
        test=None if context.test is None else _fit(context.test),
    )
    return Outcome(overview, (_slope(problem, gradient),))


def _slope(problem: Problem, gradient: Tensor) -> Check:
    """The gradient's norm against the slope of the loss along it, by central differences.

    With the slopes ``s₊`` and ``s₋`` to both sides over a step ``h``, curvature and kinks move the
    central difference from the derivative by at most about ``(s₊ − s₋)/2``, and rounding by that of
    the losses over ``h``. Of several steps, the one with the smallest sum of both is taken.
    """
    norm, size = float(gradient.norm()), weight_norms(problem).norm or 1.0
    if norm == 0:
        return Check("the gradient is zero", True)
    eps = torch.finfo(problem.dtype).eps
    direction = (gradient / norm).to(problem.dtype)
    here, best = _loss(problem, 0 * direction), (0.0, float("inf"))
    for k in range(_STEPS):
        h = eps ** (1 / 3) * size / sqrt(problem.params.size) / 4**k
        after, before = (_loss(problem, sign * h * direction) for sign in (1.0, -1.0))
        bend = abs(after - 2 * here + before) / (2 * h)
        rounding = 8 * eps * (1 + abs(here)) / h
        best = min(best, ((after - before) / (2 * h), bend + rounding), key=lambda pair: pair[1])
    slope, allowed = best[0], best[1] + 1e-2 * norm
    return Check(
        f"the gradient has the norm {norm:.4g}; along it the loss has the slope {slope:.4g} by "
        f"differences, {allowed:.2g} apart allowed",
        abs(slope - norm) <= allowed,
    )


def _loss(problem: Problem, step: Tensor) -> float:
    """The mean loss in float64 after a step from the problem's weights."""
    moved = {
        name: (p.detach() + part.to(p)).requires_grad_()
        for (name, p), part in zip(
            problem.variables().items(), problem.params.unflatten(step).values(), strict=True
        )
    }
    total, weight = 0.0, 0.0
    for batch in problem.batches():
        with problem.evaluation():
            z = problem.output(moved, batch)
        at = problem.loss_at(z, batch)
        total, weight = total + float(at.value().double()), weight + at.weight
    return problem.count(total) / problem.whole_weight(weight)


def _fit(problem: Problem) -> SplitFit:
    measured = scores(problem)
    error = None if measured.error is None else measured.error.value
    return SplitFit(measured.samples, measured.loss.value, error)


def _size(problem: Problem, layer: str) -> int:
    """The number of a layer's variables, without those of its submodules."""
    shapes = problem.params.shapes
    names = (name for name in problem.params.resolve(layer) if name.rpartition(".")[0] == layer)
    return sum(shapes[name].numel() for name in names)


def outputs(problem: Problem) -> int:
    """The number of outputs for one sample, or for one position of it where each has a class."""
    batch = next(iter(problem.batches()))
    with problem.evaluation():
        z = problem.output(problem.variables(), batch).detach()
    return problem.loss.outputs(z, batch.target)
