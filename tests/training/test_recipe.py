"""The recipe: schedules as in the papers, and contradictions that are refused."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.training import Recipe


def linear(t: int, total: int, end: Fraction) -> Fraction:
    """FF eq. 12 with exact numbers, as a factor of the initial rate."""
    s = Fraction(t, total)
    if s <= Fraction(1, 2):
        return Fraction(1)
    if s <= Fraction(9, 10):
        return 1 - (1 - end) * (s - Fraction(1, 2)) / Fraction(4, 10)
    return end


@pytest.mark.parametrize("epochs", [1, 2, 7, 10, 300])
def test_linear_decay(epochs: int) -> None:
    recipe = Recipe(seed=0, epochs=epochs, lr=0.03, schedule="linear")
    for t in range(1, epochs + 1):
        assert recipe.rate(t) == pytest.approx(0.03 * float(linear(t, epochs, Fraction(1, 100))))


@pytest.mark.parametrize("start", [0, 1, 20, 161])
def test_averaging_decay_ends_at_half_the_rate_before_the_average_begins(start: int) -> None:
    recipe = Recipe(seed=0, epochs=300, lr=0.03, schedule="averaging", average_from=start)
    for t in range(1, 301):
        if t <= start:
            factor = float(linear(t, start, Fraction(1, 2)))
            assert recipe.rate(t) == pytest.approx(0.03 * factor)
        else:
            assert recipe.rate(t) == pytest.approx(0.015)
            assert recipe.averages(t)
    assert not any(recipe.averages(t) for t in range(1, start + 1))


def test_both_decays_are_continuous() -> None:
    for schedule, start in (("linear", None), ("averaging", 5000)):
        recipe = Recipe(seed=0, epochs=10_000, lr=1.0, schedule=schedule, average_from=start)
        rates = [recipe.rate(t) for t in range(1, 10_001)]
        assert max(abs(a - b) for a, b in pairwise(rates)) < 3e-4


@pytest.mark.parametrize(
    ("epochs", "first", "second"), [(350, 116, 233), (200, 66, 133), (9, 3, 6)]
)
def test_steps_after_each_third(epochs: int, first: int, second: int) -> None:
    recipe = Recipe(seed=0, epochs=epochs, lr=0.25, schedule="step")
    rates = [recipe.rate(t) for t in range(1, epochs + 1)]
    expected = [0.25] * first + [0.025] * (second - first) + [0.0025] * (epochs - second)
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [0.0, 0.5, 2.0])
def test_a_cosine_that_changes_with_every_step(warmup: float) -> None:
    """torch's own schedule, stepped as often."""
    recipe = Recipe(seed=0, epochs=6, lr=0.3, schedule="cosine", warmup=warmup)
    steps = 10
    rates = [rate for epoch in range(1, 7) for rate in recipe.rates(epoch, steps)]
    before = round(warmup * steps)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60 - before, eta_min=0.03)
    expected = [0.3 * (step + 1) / before for step in range(before)]
    for _ in range(60 - before):
        optimizer.step()
        schedule.step()
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx(expected, rel=1e-9)
    assert recipe.rate(6) == rates[-1] == pytest.approx(0.03)


def test_a_warm_up_of_a_schedule_by_epochs() -> None:
    recipe = Recipe(seed=0, epochs=4, lr=0.4, schedule="step", warmup=2)
    assert recipe.rates(1, 2) == pytest.approx([0.1, 0.2])
    assert recipe.rates(2, 2) == pytest.approx([0.03, 0.04])
    assert recipe.rates(3, 2) == pytest.approx([0.004] * 2)


def test_constant() -> None:
    recipe = Recipe(seed=0, epochs=1000)
    assert {recipe.rate(t) for t in range(1, 1001)} == {0.01}
    assert not recipe.averages(1000)


def test_checkpoints_are_sorted_and_single() -> None:
    assert Recipe(seed=0, epochs=9, checkpoints=[5, 1, 5]).checkpoints == (1, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"epochs": 2.5}, "epochs must be an integer"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"lr": -0.1}, "lr must be at least 0"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"weight_decay": float("inf")}, "weight_decay must be a finite number"),
        ({"momentum": 1.0}, "momentum is for optimizer='sgd' and less than 1"),
        ({"momentum": 0.9, "optimizer": "adam"}, "momentum is for optimizer='sgd'"),
        ({"optimizer": "lbfgs"}, "optimizer must be one of 'sgd', 'adam', 'adamw', 'gadam'"),
        ({"schedule": "sine"}, "schedule must be one of 'constant', 'linear', 'averaging'"),
        ({"warmup": 10}, "warmup must be less than epochs=10, got 10"),
        ({"warmup": -1.0}, "warmup must be at least 0"),
        ({"loss": "hinge"}, "loss must be one of 'cross_entropy', 'binary_logistic'"),
        ({"optimizer": "gadam"}, "optimizer='gadam' needs average_from"),
        ({"schedule": "averaging"}, "schedule='averaging' needs average_from"),
        ({"average_from": 10}, "average_from must be less than epochs=10, got 10"),
        ({"checkpoints": (11,)}, "checkpoints must not lie after epoch 10, got 11"),
        ({"checkpoints": (0,)}, "each of checkpoints must be an integer of at least 1"),
    ],
)
def test_contradictions_are_refused(change: dict, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        Recipe(**{"seed": 0, "epochs": 10, **change})
