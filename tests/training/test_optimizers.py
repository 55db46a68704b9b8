"""The optimizers against the formulas of their papers, written as plain loops over numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.training import Recipe, train
from curvescope.training.optimizers import Optimizer
from curvescope.training.run import Plan, Run
from tests.training.problems import data, flat, model

RATES = (0.1, 0.1, 0.03, 0.03, 0.01, 0.5, 0.002, 0.1)
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

Rule = Callable[[list[float], list[float], float], None]
"""Changes weights in place, given their gradient and the rate."""


def plain_sgd(size: int, momentum: float = 0.0, decay: float = 0.0) -> Rule:
    m = [0.0] * size

    def step(w: list[float], g: list[float], rate: float) -> None:
        for i in range(size):
            m[i] = momentum * m[i] + g[i] + decay * w[i]
            w[i] -= rate * m[i]

    return step


def plain_adam(size: int, decay: float = 0.0, *, decoupled: bool = False) -> Rule:
    m, v, count = [0.0] * size, [0.0] * size, [0]

    def step(w: list[float], g: list[float], rate: float) -> None:
        count[0] += 1
        for i in range(size):
            gradient = g[i] if decoupled else g[i] + decay * w[i]
            if decoupled:
                w[i] -= rate * decay * w[i]
            m[i] = BETA1 * m[i] + (1 - BETA1) * gradient
            v[i] = BETA2 * v[i] + (1 - BETA2) * gradient**2
            mean, square = m[i] / (1 - BETA1 ** count[0]), v[i] / (1 - BETA2 ** count[0])
            w[i] -= rate * mean / (math.sqrt(square) + EPSILON)

    return step


CASES: dict[str, tuple[dict, Callable[[int], Rule]]] = {
    "sgd": ({}, plain_sgd),
    "sgd-momentum": ({"momentum": 0.9}, lambda n: plain_sgd(n, 0.9)),
    "sgd-decay": ({"momentum": 0.9, "weight_decay": 0.1}, lambda n: plain_sgd(n, 0.9, 0.1)),
    "adam": ({"optimizer": "adam"}, plain_adam),
    "adam-decay": ({"optimizer": "adam", "weight_decay": 0.1}, lambda n: plain_adam(n, 0.1)),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.25},
        lambda n: plain_adam(n, 0.25, decoupled=True),
    ),
    "gadam": (
        {"optimizer": "gadam", "weight_decay": 0.25, "average_from": 1},
        lambda n: plain_adam(n, 0.25, decoupled=True),
    ),
}


def numbers(tensors: Iterable[Tensor]) -> list[float]:
    return [value for tensor in tensors for value in tensor.detach().flatten().tolist()]


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_formulas(case: str, generator: torch.Generator) -> None:
    settings, reference = CASES[case]
    shapes = [(3, 4), (5,), (), (2, 3, 2)]
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    plain = numbers(weights)
    ours = Optimizer(Recipe(seed=0, epochs=2, **settings), weights)
    rule = reference(len(plain))
    for rate in RATES:
        gradients = [
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
        ]
        rule(plain, numbers(gradients), rate)
        ours.rate.fill_(rate)
        ours.step(gradients)
        assert numbers(weights) == pytest.approx(plain, rel=1e-12, abs=1e-14)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda w: w.contiguous(memory_format=torch.channels_last),
    "transposed": lambda w: w.transpose(0, 3).contiguous().transpose(0, 3),
    "with gaps": lambda w: torch.full((*w.shape, 2), 7.0, dtype=w.dtype)[..., 0].copy_(w),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ["sgd-decay", "adamw"])
def test_memory_layouts_do_not_matter(case: str, layout: str, generator: torch.Generator) -> None:
    """A fused kernel pairs numbers by their place in memory, whatever the shapes say."""
    start = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    plain, laid_out = [start.clone()], [LAYOUTS[layout](start)]
    assert laid_out[0].stride() != start.stride()
    recipe = Recipe(seed=0, epochs=2, lr=0.1, **CASES[case][0])
    ours, other = Optimizer(recipe, plain), Optimizer(recipe, laid_out)
    for _ in range(3):
        gradient = torch.randn(start.shape, generator=generator, dtype=torch.float64)
        ours.step([gradient])
        other.step([gradient])
        torch.testing.assert_close(laid_out[0], plain[0], rtol=1e-12, atol=1e-14)
    if layout == "with gaps":
        assert bool((laid_out[0]._base[..., 1] == 7).all())


def test_layouts_do_not_matter_in_a_training() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 2), nn.Flatten(), nn.Linear(20, 3))
    plain = nn.Sequential(*layers).double()
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    X, y = torch.randn(40, 2, 5, 5, dtype=torch.float64), torch.arange(40) % 3
    recipe = Recipe(seed=0, epochs=3, batch_size=8, lr=0.05, momentum=0.9, weight_decay=0.01)
    for net in plain, last:
        train(net, (X, y), recipe)
    assert last[0].weight.stride() != plain[0].weight.stride()
    torch.testing.assert_close(flat(last), flat(plain), rtol=1e-10, atol=1e-12)


def test_sparse_gradients_are_gradients() -> None:
    words, y = torch.arange(40).reshape(20, 2) % 5, torch.arange(20) % 3
    nets = []
    for sparse in (False, True):
        torch.manual_seed(0)
        embedding = nn.Embedding(5, 4, sparse=sparse)
        nets.append(nn.Sequential(embedding, nn.Flatten(), nn.Linear(8, 3)).double())
        recipe = Recipe(seed=0, epochs=3, batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.1)
        train(nets[-1], (words, y), recipe)
    torch.testing.assert_close(flat(nets[0]), flat(nets[1]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_a_training_equals_the_obvious_loop(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample once an epoch, the last batch shorter, the schedule by epochs."""
    settings, reference = CASES[case]
    recipe = Recipe(seed=3, epochs=4, batch_size=16, lr=0.05, schedule="step", **settings)
    orders = []
    original = Run.plan

    def spy(self: Run) -> Plan:
        plan = original(self)
        orders.append(plan.order)
        return plan

    monkeypatch.setattr(Run, "plan", spy)
    X, y = data()
    ours, theirs = model(), model()
    trained = train(ours, (X, y), recipe)

    rule, weights = reference(len(flat(theirs))), numbers(theirs.parameters())
    ends = []
    for epoch, order in enumerate(orders[:4], start=1):
        assert order.sort().values.tolist() == list(range(len(y)))
        losses = []
        for rows in order.split(16):
            theirs.zero_grad()
            loss = F.cross_entropy(theirs(X[rows]), y[rows])
            loss.backward()
            rule(weights, numbers(p.grad for p in theirs.parameters()), recipe.rate(epoch))
            nn.utils.vector_to_parameters(
                torch.tensor(weights, dtype=torch.float64), theirs.parameters()
            )
            losses += [loss.item()] * len(rows)
        ends.append(flat(theirs))
        assert trained.history[epoch - 1].loss == pytest.approx(sum(losses) / len(y), rel=1e-10)
    start = recipe.average_from
    expected = ends[-1] if start is None else torch.stack(ends[start:]).mean(0)
    torch.testing.assert_close(flat(ours), expected, rtol=1e-10, atol=1e-12)
