"""Sec. 2, anonymous2021 sec. 3 (Dinh et al. 2017): two layers rescaled by α and 1/α."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from curvescope.figures.model import Panel, Picture
from curvescope.flatness import DeepLinear, rescale
from curvescope.operators.base import LinearOperator
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import eigenpairs
from curvescope.studies import pictures
from curvescope.studies.run import Result, Run

LAYERS = {"F-200^2": ("fc1", "fc2"), "LeNet5": ("conv1", "conv2")}
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
CHAIN = DeepLinear((1.0, 2.0, 1.5), -1.0)
"""Three weights and X = −1; the second weight is multiplied by α, the third divided by it."""


@dataclass(frozen=True)
class Point:
    """What a factor did: relative changes, ratios measured over predicted, and λ_max itself."""

    alpha: float
    loss: float
    first_block: float
    second_block: float
    ratio: float
    largest: float


def run(run: Run) -> Result:
    """Train, rescale, and hold what happens beside what is predicted."""
    points = {name: _measured(run, name) for name in run["cases"]}
    values = {what: value for name, found in points.items() for what, value in _values(name, found)}
    traces = [CHAIN.rescaled(1, 2, alpha).trace for alpha in FACTORS]
    losses = [CHAIN.rescaled(1, 2, alpha).loss for alpha in FACTORS]
    values["the paper's example: largest change of the loss"] = max(
        abs(x - CHAIN.loss) for x in losses
    )
    values["the paper's example: trace at α = 10 over that at α = 1"] = traces[-1] / traces[2]
    shown = {name: ("λ_max(H)", [p.largest for p in found]) for name, found in points.items()}
    shown["the paper's example"] = ("tr H", traces)
    panels: list[Panel] = [
        pictures.curves(name, "α", what, {"": (FACTORS, y)}, xscale="log", yscale="log")
        for name, (what, y) in shown.items()
    ]
    caption = (
        "λ_max after the rescaling that leaves the function as it is, and the paper's closed form."
    )
    numbers = {name: [vars(p) for p in found] for name, found in points.items()}
    return Result(values, (Picture("rescaling", caption, tuple(panels), 3),), numbers)


def _measured(run: Run, name: str) -> list[Point]:
    group, (first, second) = run.networks(name), LAYERS[name]
    few = replace(group.few, X=group.few.X.double())
    problem = Problem(group.models[0].double(), few.batches(len(few)))
    H, value = Hessian(problem), float(problem.value())
    layers = (f"{first}.weight", f"{second}.weight")
    before = [_largest(H.block(layer)) for layer in layers]
    points = []
    for alpha in FACTORS:
        run.tell(f"{name}: α = {alpha:g}")
        after = rescale(problem, first, second, alpha)
        new = Hessian(after.problem)
        blocks = [
            _largest(new.block(layer)) / (was * after.block_factor(layer))
            for layer, was in zip(layers, before, strict=True)
        ]
        largest = _largest(new)
        ratio = largest / _largest(after.predicted(H))
        change = abs(float(after.problem.value()) - value) / value
        points.append(Point(alpha, change, blocks[0], blocks[1], ratio, largest))
    return points


def _largest(A: LinearOperator) -> float:
    g = torch.Generator().manual_seed(0)
    return float(eigenpairs(A, 1, tol=1e-7, overlook=1.0, generator=g).values[0])


def _values(name: str, points: list[Point]) -> list[tuple[str, float]]:
    def off(values: list[float]) -> float:
        return max(abs(value - 1) for value in values)

    at = {p.alpha: p.largest for p in points}
    return [
        (f"{name}: largest relative change of the loss", max(p.loss for p in points)),
        (
            f"{name}: first block over α⁻² times the old, off by at most",
            off([p.first_block for p in points]),
        ),
        (
            f"{name}: second block over α² times the old, off by at most",
            off([p.second_block for p in points]),
        ),
        (
            f"{name}: λ_max of H over that of D H D, off by at most",
            off([p.ratio for p in points]),
        ),
        (f"{name}: λ_max at α = 10 over that at α = 1", at[10.0] / at[1.0]),
    ]
