"""What is looked at: sizes, losses and errors, before any curvature."""

from __future__ import annotations

from typing import Any

from curvescope.experiments.checks import Check
from curvescope.experiments.stages.context import Context
from curvescope.experiments.store import Outcome
from curvescope.problem import Problem
from curvescope.sharpness.scores import scores, weight_norms


def compute(context: Context) -> Outcome:
    """Sizes, norms of weights and gradient, and the fit on both splits; a few passes over each."""
    problem = context.problem
    fits = {"train": _fit(problem)}
    if context.test is not None:
        fits["test"] = _fit(context.test)
    values: dict[str, Any] = {
        "parameters": problem.params.size,
        "outputs": context.outputs,
        "layers": {layer: _size(problem, layer) for layer in problem.params.layers},
        "weight norm": weight_norms(problem).norm,
        "gradient norm": float(problem.gradient().double().norm()),
        "fits": fits,
    }
    # Problem.check raises where it does not hold, before the run begins.
    same = Check("two passes over the data give the same loss and gradient", True)
    return Outcome(values, checks=(same,))


def _fit(problem: Problem) -> dict[str, Any]:
    found = scores(problem)
    error = None if found.error is None else found.error.value
    return {"samples": found.samples, "loss": found.loss.value, "error": error}


def _size(problem: Problem, layer: str) -> int:
    """The variables that a layer owns itself."""
    shapes = problem.params.shapes
    own = (name for name in problem.params.resolve(layer) if name.rpartition(".")[0] == layer)
    return sum(shapes[name].numel() for name in own)


def outputs(problem: Problem) -> int:
    """The number of outputs for one sample, or for one position of it where each has a class."""
    with problem.evaluation():
        batch = next(iter(problem.batches()))
        z = problem.output(problem.variables(), batch).detach()
    if problem.loss.name == "cross_entropy":
        return int(z.shape[-1 if batch.target.shape == z.shape[:-1] else 1])
    return max(int(z.shape[1:].numel()), 1)
