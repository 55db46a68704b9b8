"""Sec. 6, tables 7 to 9: a penalty on the trace of G, where data are fitted and where not."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import log10, nan
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from curvescope.figures.model import Picture
from curvescope.flatness import TraceRegularizer
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem
from curvescope.spectra import trace
from curvescope.studies import pictures
from curvescope.studies.courses import Course, Courses, courses
from curvescope.studies.granziol2020.solutions import beyond, over_seeds, sample_gain
from curvescope.studies.networks import fresh
from curvescope.studies.run import Result, Run, Value

CASES = ("fitted", "unfitted")
WEIGHTS = (0.0, 1e-4)
"""``η``: without the penalty, and the paper's choice."""
_BATCH = 128


def run(run: Run) -> Result:
    """Train with and without the penalty for each seed, compare."""
    found = {case: {weight: _courses(run, case, weight) for weight in WEIGHTS} for case in CASES}
    values: dict[str, float | Value] = {}
    for case, by_weight in found.items():
        values |= _values(run, case, by_weight)
    values["a step with the penalty over a plain one"] = _cost(run, found["fitted"][0.0])
    return Result(values, (_picture(found),))


def _courses(run: Run, case: str, weight: float) -> Courses:
    def penalty(seed: int) -> TraceRegularizer | None:
        g = torch.Generator().manual_seed(seed)
        return TraceRegularizer("ggn", weight=weight, generator=g) if weight else None

    return courses(run, f"{case}-{weight:g}", run.describe(case), penalty=penalty)


def _values(run: Run, case: str, by_weight: dict[float, Courses]) -> dict[str, float | Value]:
    values: dict[str, float | Value] = {}
    traces = {}
    for weight, group in by_weight.items():
        fits = [each.fits for each in group.runs]
        where = f"{case}, η = {weight:g}"
        values[f"training accuracy, {where}"] = over_seeds([100 * a.accuracy for a, _ in fits])
        values[f"test accuracy, {where}"] = over_seeds([100 * b.accuracy for _, b in fits])
        values[f"loss gap, {where}"] = over_seeds([b.loss - a.loss for a, b in fits])
        traces[weight] = [_trace(run, group, each) for each in group.runs]
        values[f"tr G, train mode, {where}"] = over_seeds(traces[weight])
    plain, penalized = by_weight.values()
    data = plain.held_out
    assert data is not None, "the descriptions hold out test images"
    pairs = [(a.model, b.model) for a, b in zip(plain.runs, penalized.runs, strict=True)]
    values[f"gain in accuracy by the penalty, {case}, less two standard errors, points"] = (
        sample_gain(pairs, data)
    )
    ratios = [log10(b / a) for a, b in zip(*traces.values(), strict=True)]
    name = f"log₁₀ of tr G with the penalty over that without, {case}, plus two standard errors"
    values[name] = beyond(ratios, upper=True)
    return values


def _trace(run: Run, group: Courses, each: Course) -> float:
    """In the mode in which the penalty sees the batch norms."""
    count = group.description.curvature
    few = (group.data.X[:count], group.data.y[:count])
    batches = list(zip(*(part.split(_BATCH) for part in few), strict=True))
    problem = Problem(each.model, batches, mode="train")
    return trace(GaussNewton(problem), probes=16, block=4, generator=run.generator(1)).value


def _cost(run: Run, trained: Courses) -> float:
    """The time of a step with the penalty over that of a plain one: the median of pairs in turn."""
    model = fresh(trained.description, trained.data, run.seed).to(run.device)
    size = trained.description.recipe.batch_size
    X, y = trained.data.X[:size], trained.data.y[:size]
    penalty = TraceRegularizer("ggn", weight=WEIGHTS[1], generator=run.generator(2))

    def seconds(loss: Callable[[], Tensor]) -> float:
        begin = time.perf_counter()
        loss().backward()
        if X.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def penalized() -> Tensor:
        parts = penalty.objective(model, X, y)
        return parts.loss + parts.penalty

    pairs = [(seconds(lambda: cross_entropy(model(X), y)), seconds(penalized)) for _ in range(12)]
    return median(b / a for a, b in pairs[2:])


def _picture(found: dict[str, dict[float, Courses]]) -> Picture:
    panels = []
    for case, by_weight in found.items():
        rows = {
            f"η = {weight:g}": torch.tensor(
                [
                    [100 * (e.test_accuracy or nan) for e in each.trained.history]
                    for each in group.runs
                ]
            )
            for weight, group in by_weight.items()
        }
        panels.append(pictures.means(case, "epoch", "test accuracy, per cent", rows))
    return Picture(
        "accuracy",
        "Test accuracy along training without and with the penalty, where the data are fitted and "
        "where not; bands: standard deviation over the seeds.",
        tuple(panels),
    )
