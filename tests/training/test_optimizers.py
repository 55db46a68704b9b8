"""The flat optimisers against torch's own, step by step and in whole trainings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from curvescope.training import Recipe, train
from curvescope.training import optimizers as flat_optimizers
from curvescope.training.run import Plan, Run
from tests.training.problems import data, flat, model

RATES = (0.1, 0.1, 0.03, 0.03, 0.01, 0.5, 0.002, 0.1)

CASES = {
    "sgd": ({}, lambda p: torch.optim.SGD(p)),
    "sgd-momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, momentum=0.9)),
    "sgd-decay": (
        {"momentum": 0.9, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, momentum=0.9, weight_decay=0.1),
    ),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p)),
    "adam-decay": (
        {"optimizer": "adam", "weight_decay": 0.1},
        lambda p: torch.optim.Adam(p, weight_decay=0.1),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.25},
        lambda p: torch.optim.AdamW(p, weight_decay=0.25),
    ),
    "gadam": (
        {"optimizer": "gadam", "weight_decay": 0.25, "average_from": 1},
        lambda p: torch.optim.AdamW(p, weight_decay=0.25),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_equal_torchs(case: str, generator: torch.Generator) -> None:
    settings, reference = CASES[case]
    weights = torch.randn(40, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(weights.clone())
    optimizer = reference([theirs])
    ours = flat_optimizers.make(Recipe(seed=0, epochs=2, **settings), weights)
    for step, rate in enumerate(RATES, start=1):
        gradient = torch.randn(40, generator=generator, dtype=torch.float64)
        theirs.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        row = torch.tensor(ours.coefficients(step, rate), dtype=torch.float64)
        ours.step(weights, gradient, row)
        torch.testing.assert_close(weights, theirs.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_a_training_equals_the_obvious_loop(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample once an epoch, the last batch shorter, the schedule by epochs."""
    settings, reference = CASES[case]
    recipe = Recipe(seed=3, epochs=4, batch_size=16, lr=0.05, schedule="step", **settings)
    orders = []
    original = Run.plan

    def spy(self: Run, epoch: int) -> Plan:
        plan = original(self, epoch)
        orders.append(plan.order)
        return plan

    monkeypatch.setattr(Run, "plan", spy)
    X, y = data()
    ours, theirs = model(), model()
    trained = train(ours, (X, y), recipe)

    optimizer = reference(theirs.parameters())
    ends = []
    for epoch, order in enumerate(orders[:4], start=1):
        assert order.sort().values.tolist() == list(range(len(y)))
        optimizer.param_groups[0]["lr"] = recipe.rate(epoch)
        losses = []
        for rows in order.split(16):
            optimizer.zero_grad()
            loss = F.cross_entropy(theirs(X[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses += [loss.item()] * len(rows)
        ends.append(flat(theirs))
        assert trained.history[epoch - 1].loss == pytest.approx(sum(losses) / len(y), rel=1e-10)
    start = recipe.average_from
    expected = ends[-1] if start is None else torch.stack(ends[start:]).mean(0)
    torch.testing.assert_close(flat(ours), expected, rtol=1e-10, atol=1e-12)
