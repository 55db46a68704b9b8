"""FF §2, PP §3 (Dinh et al. 2017): two layers rescaled by α and 1/α."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import DeepLinear, rescale
from curvescope.operators.base import LinearOperator
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import eigenpairs
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.training import Recipe

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
CHAIN = DeepLinear((1.0, 2.0, 1.5), -1.0)


@dataclass(frozen=True)
class Case:
    """A network and two of its layers that follow each other."""

    network: str
    first: str
    second: str
    digits: bool


CASES = (Case("F-200^2", "fc1", "fc2", True), Case("LeNet5", "conv1", "conv2", False))


@dataclass(frozen=True)
class Point:
    """What a factor did: relative changes, ratios measured over predicted, and λ_max itself."""

    alpha: float
    loss: float
    first_block: float
    second_block: float
    ratio: float
    largest: float


def run(settings: Settings) -> Outcome:
    """Train, rescale, and hold what happens beside what is predicted."""
    cases = CASES[: settings.pick(smoke=1, small=2, paper=2)]
    points = {case.network: _measured(settings, case) for case in cases}
    rows = [row for name, found in points.items() for row in _rows(name, found)]
    traces = [CHAIN.rescaled(1, 2, alpha).trace for alpha in FACTORS]
    losses = [CHAIN.rescaled(1, 2, alpha).loss for alpha in FACTORS]
    rows += [
        Row(
            "FF's example: largest change of the loss",
            max(abs(value - CHAIN.loss) for value in losses),
            paper=0.0,
            high=1e-14,
        ),
        Row("FF's example: trace at α = 10 over that at α = 1", traces[-1] / traces[2]),
    ]
    panels = [
        Panel(
            title=name,
            xlabel="α",
            ylabel="λ_max(H)",
            curves=(Curve.of("measured", FACTORS, [p.largest for p in found]),),
            xscale="log",
            yscale="log",
        )
        for name, found in points.items()
    ]
    panels.append(
        Panel(
            title="FF's example",
            xlabel="α",
            ylabel="tr H",
            curves=(Curve.of("closed form", FACTORS, traces),),
            xscale="log",
            yscale="log",
        )
    )
    caption = "λ_max after the rescaling that leaves the function as it is, and FF's closed form."
    numbers = {name: [vars(p) for p in found] for name, found in points.items()}
    return Outcome(tuple(rows), (Picture("rescaling", caption, tuple(panels), 3),), numbers, NOTES)


NOTES = (
    "One layer's weights and biases times α, the next one's weights divided by α. The loss stays; "
    "the block of the first layer is multiplied by α⁻², that of the second by α², and the whole "
    "Hessian becomes D H D. In float64, eigenvalues to a relative residual of 1e-7.",
    "FF's example: w = (1, 2, 1.5), X = −1, the second weight times α and the third divided by it.",
)


def _measured(settings: Settings, case: Case) -> list[Point]:
    if case.digits:
        sizes = settings.pick(smoke=(600, 100), small=(10_000, 100), paper=(45_000, 100))
        data, _ = solutions.digits(settings, *sizes)
    else:
        data, _ = solutions.photographs(
            settings, settings.pick(smoke=1, small=5000, paper=20_000), 1
        )
    epochs = settings.pick(smoke=3, small=2, paper=5)
    recipe = Recipe(seed=0, epochs=epochs, lr=0.05, momentum=0.9)
    (solution,) = solutions.solve(
        settings, f"flatness-rescaling-{case.network}", case.network, data, {"SGD": recipe}
    )
    count = settings.pick(smoke=20, small=200, paper=500)
    few = solutions.part(data, torch.arange(count, device=data.X.device))
    problem = Problem(solution.model.double(), (few.X.double(), few.y))
    H, value = Hessian(problem), float(problem.value())
    layers = (f"{case.first}.weight", f"{case.second}.weight")
    before = [_largest(H.block(layer)) for layer in layers]
    points = []
    for alpha in FACTORS:
        settings.tell(f"{case.network}: α = {alpha:g}")
        after = rescale(problem, case.first, case.second, alpha)
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


def _rows(name: str, points: list[Point]) -> list[Row]:
    def off(values: list[float]) -> float:
        return max(abs(value - 1) for value in values)

    at = {p.alpha: p.largest for p in points}
    return [
        Row(
            f"{name}: largest relative change of the loss",
            max(p.loss for p in points),
            paper=0.0,
            high=1e-12,
        ),
        Row(
            f"{name}: first block over α⁻² times the old, off by at most",
            off([p.first_block for p in points]),
            paper=0.0,
            high=1e-5,
        ),
        Row(
            f"{name}: second block over α² times the old, off by at most",
            off([p.second_block for p in points]),
            paper=0.0,
            high=1e-5,
        ),
        Row(
            f"{name}: λ_max of H over that of D H D, off by at most",
            off([p.ratio for p in points]),
            paper=0.0,
            high=1e-5,
        ),
        Row(f"{name}: λ_max at α = 10 over that at α = 1", at[10.0] / at[1.0]),
    ]


ENTRY = Entry(
    name="flatness/rescaling",
    source="FF §2, PP §3 (no figure)",
    shows="Rescaling two consecutive layers by α and 1/α leaves the loss within rounding and moves "
    "the Hessian's eigenvalues by the predicted factors.",
    cost={
        "smoke": "4 s, embedded digits",
        "small": "2 minutes, MNIST and CIFAR-10",
        "paper": "MNIST and CIFAR-10: ten minutes on two cores",
    },
    run=run,
    subject={
        "smoke": "Two layers rescaled by α and 1/α, embedded digits",
        "small": "Two layers rescaled by α and 1/α, mnist and cifar-10",
        "paper": "Two layers rescaled by α and 1/α, mnist and cifar-10",
    },
    reduced={
        "smoke": "data and epochs; the paper has the argument alone, no experiment",
        "small": "nothing: the papers have the argument alone, no experiment",
        "paper": "nothing: the papers have the argument alone, no experiment",
    },
)
