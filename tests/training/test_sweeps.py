"""Sweeps over learning rates: the runs are those of `train`, the best is chosen, and kept runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.training import Progress, Recipe, Trained, learning_rates, sweep, train
from tests.training.problems import data, flat, model

RECIPE = Recipe(seed=3, epochs=4, batch_size=16, momentum=0.9, schedule="step")
RATES = (1e-4, 0.1, 0.01)


def test_the_rates_of_the_paper() -> None:
    rates = torch.tensor(learning_rates(), dtype=torch.float64)
    assert len(rates) == 100
    assert (float(rates[0]), float(rates[-1])) == (0.25, 0.0001)
    ratios = rates[1:] / rates[:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand(99))
    assert learning_rates(1) == (0.25,)
    assert learning_rates(2) == (0.25, 0.0001)
    assert len(learning_rates(25)) == 25


@pytest.mark.parametrize("name", ["F-8", "F-8-BN"])
def test_every_run_is_that_of_train_and_the_best_stays(name: str) -> None:
    swept = model(name)
    start = flat(swept)
    found = sweep(swept, data(), RECIPE, RATES, test=data(seed=1))
    alone = {}
    for rate, run in zip(RATES, found.runs, strict=True):
        other = model(name)
        assert torch.equal(flat(other), start)
        expected = train(other, data(), replace(RECIPE, lr=rate), test=data(seed=1))
        assert (run.train, run.test, run.recipe) == (expected.train, expected.test, expected.recipe)
        alone[rate] = other
    errors = [1 - run.test.accuracy for run in found.runs if run.test is not None]
    assert list(found.scores) == errors
    assert found.rate == RATES[errors.index(min(errors))] == 0.1
    assert found.best == found.runs[1]
    for ours, theirs in zip(
        swept.state_dict().values(), alone[0.1].state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert not swept.training


def test_runs_are_measured_on_test_data_at_the_end_alone() -> None:
    found = sweep(model(), data(), RECIPE, RATES, test=data(seed=1))
    for run in found.runs:
        assert run.test is not None
        assert all(epoch.test_loss is None for epoch in run.history)


def test_another_score_and_equal_ones() -> None:
    def by_loss(run: Trained) -> float:
        assert run.train is not None
        return run.train.loss

    swept = model()
    found = sweep(swept, data(), RECIPE, RATES, score=by_loss)
    losses = [by_loss(run) for run in found.runs]
    assert found.scores == tuple(losses)
    assert found.chosen == losses.index(min(losses))
    equal = sweep(model(), data(), RECIPE, RATES, score=lambda run: 1.0)
    assert equal.rate == RATES[0]  # the first


def test_runs_that_diverge_are_not_chosen() -> None:
    swept = model()
    found = sweep(swept, data(), RECIPE, [1e300, 0.01], test=data(seed=1))
    assert found.runs[0].diverged is not None
    assert found.scores[0] == math.inf
    assert found.rate == 0.01
    other = model()
    start = flat(other)
    nothing = sweep(other, data(), RECIPE, [1e300], test=data(seed=1))
    assert nothing.chosen is nothing.rate is nothing.best is None
    assert torch.equal(flat(other), start)
    nan = sweep(model(), data(), RECIPE, [0.01], score=lambda run: math.nan)
    assert nan.chosen is None


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = model()
    expected = sweep(whole, data(), RECIPE, RATES, test=data(seed=1))
    steps: list[int] = []

    def stop(progress: Progress) -> None:
        steps.append(progress.done)
        if len(steps) == 4 * progress.total // RECIPE.epochs + progress.total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # in the second of three runs
        sweep(model(), data(), RECIPE, RATES, test=data(seed=1), folder=tmp_path, tell=stop)
    with pytest.raises(CurvescopeError, match="holds an unfinished run"):
        sweep(model(), data(), RECIPE, RATES, test=data(seed=1), folder=tmp_path)
    first = len(steps)
    steps.clear()
    resumed = model()
    found = sweep(
        resumed, data(), RECIPE, RATES, test=data(seed=1), folder=tmp_path, resume=True,
        tell=lambda progress: steps.append(progress.done),
    )  # fmt: skip
    assert found.scores == expected.scores
    assert found.rate == expected.rate
    assert torch.equal(flat(resumed), flat(whole))
    assert 0 < len(steps) < 3 * first  # the first run was read
    steps.clear()
    again = sweep(model(), data(), RECIPE, RATES, test=data(seed=1), folder=tmp_path)
    assert again.scores == expected.scores
    assert steps == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rate-0.0001", "rate-0.01", "rate-0.1",
    ]  # fmt: skip


def test_what_is_refused() -> None:
    with pytest.raises(CurvescopeError, match="at least one rate, and each once"):
        sweep(model(), data(), RECIPE, [], test=data())
    with pytest.raises(CurvescopeError, match="at least one rate, and each once"):
        sweep(model(), data(), RECIPE, [0.1, 0.1], test=data())
    with pytest.raises(CurvescopeError, match="the error on test data needs test data"):
        sweep(model(), data(), RECIPE, [0.1])
    with pytest.raises(CurvescopeError, match="each rate"):
        sweep(model(), data(), RECIPE, [-0.1], test=data())
    with pytest.raises(CurvescopeError, match="smallest must not exceed largest"):
        learning_rates(3, largest=0.1, smallest=0.2)
    with pytest.raises(CurvescopeError, match="smallest must be positive"):
        learning_rates(3, smallest=0.0)
