"""Trainings of ours with a monitor: the same bits, its log, and where a resumed one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.errors import CurvescopeError
from curvescope.monitor import Monitor, read_log, stability_limits
from curvescope.training import train_many
from curvescope.training.folder import RunFolder
from curvescope.training.optimizers import Optimizer
from curvescope.training.recipe import Recipe

TRACK = ("directional", "top", "trace", "noise")
HOW = {"track": TRACK, "every": 2, "probe": 32}


def data() -> tuple[Tensor, Tensor]:
    X = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
    return X, X[:, :3].argmax(1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def recipe(optimizer: str = "adamw", **changes: Any) -> Recipe:
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    given: dict[str, Any] = {
        "seed": 3, "epochs": 4, "batch_size": 16, "lr": 0.02, "optimizer": optimizer,
        "weight_decay": 0.01, **momentum,
    }  # fmt: skip
    return Recipe(**{**given, **changes})


def contents(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(contents(a).items(), contents(b).values(), strict=True):
        assert torch.equal(x, y), name


def lines(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What was measured, without times and shares."""
    return [
        (r.step, {n: v for n, v in r.values.items() if not n.endswith(("seconds", "share"))})
        for r in read_log(folder).records
    ]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_watched_training_gives_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    plain, watched = net(), net()
    state = torch.get_rng_state()
    cs.train(plain, data(), recipe(optimizer), test=data())
    started: list[Monitor] = []
    how = {**HOW, "on_start": started.append}
    cs.train(watched, data(), recipe(optimizer), test=data(), folder=tmp_path / "run", monitor=how)
    assert_same(plain, watched)
    assert torch.equal(state, torch.get_rng_state())
    log = read_log(tmp_path / "run")
    assert [record.step for record in log.records] == [0, 2, 4, 6, 8, 10, 12]
    assert started[0].track == TRACK
    assert log.header.settings["samples"] == 32
    scaled = optimizer != "sgd"
    assert ("top/preconditioned" in log.names) is scaled
    assert all(r.values["top/threshold"] > 0 for r in log.records if r.step or not scaled)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_limit_is_that_of_torchs_optimizer(optimizer: str) -> None:
    """Three steps with the same gradients, ours and torch's: thresholds and scales agree."""
    weights = [torch.ones(3, 2), torch.full((2,), 0.5)]
    ours, theirs = ([w.clone().requires_grad_() for w in weights] for _ in range(2))
    mine = Optimizer(recipe(optimizer), ours)
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    other = (
        torch.optim.SGD(theirs, lr=0.02, momentum=0.9, weight_decay=0.01)
        if optimizer == "sgd"
        else kinds[optimizer](theirs, lr=0.02, weight_decay=0.01)
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        slopes = [torch.randn(w.shape, generator=generator) for w in weights]
        mine.step(slopes)
        for parameter, slope in zip(theirs, slopes, strict=True):
            parameter.grad = slope.clone()
        other.step()
    a, b = stability_limits(mine, ours), stability_limits(other, theirs)
    assert a is not None
    assert b is not None
    assert (a.threshold, a.rate) == pytest.approx((b.threshold, b.rate))
    for x, y in ((a.inverse_root, b.inverse_root), (a.decay, b.decay)):
        assert (x is None) == (y is None)
        if x is not None and y is not None:
            torch.testing.assert_close(x, y)


class Stopped(Exception):
    """A kill."""


def stop_after(steps: int) -> Any:
    def tell(progress: Any) -> None:
        if progress.done == steps:
            raise Stopped

    return tell


@pytest.mark.parametrize("steps", [2, 3, 8])
def test_a_resumed_log_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Stopped before the first state, right after an epoch, and in the middle of a later one."""
    monkeypatch.setattr(RunFolder, "due", lambda self: True)
    whole, parts = net(), net()
    cs.train(whole, data(), recipe(), folder=tmp_path / "whole", monitor=HOW)
    with pytest.raises(Stopped):
        cs.train(
            parts, data(), recipe(), folder=tmp_path / "parts", monitor=HOW, tell=stop_after(steps)
        )
    parts = net()
    cs.train(parts, data(), recipe(), folder=tmp_path / "parts", monitor=HOW, resume=True)
    assert_same(whole, parts)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert read_log(tmp_path / "parts").events == read_log(tmp_path / "whole").events


def test_what_cannot_be_watched_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CurvescopeError, match="there is none"):
        cs.train(net(), data(), recipe(), monitor="economy")
    with pytest.raises(CurvescopeError, match="economy"):
        cs.train(net(), data(), recipe(), folder=tmp_path / "a", monitor="dear")
    how = {"generator": torch.Generator()}
    with pytest.raises(CurvescopeError, match="generator is that of the training"):
        cs.train(net(), data(), recipe(), folder=tmp_path / "a", monitor=how)
    with pytest.raises(CurvescopeError, match="of one training"):
        train_many([net(), net()], data(), [recipe(), recipe()], monitor="economy")
    other = tmp_path / "other"
    other.mkdir()
    (other / "monitor.jsonl").write_text("theirs\n")
    with pytest.raises(CurvescopeError, match="log of another training"):
        cs.train(net(), data(), recipe(), folder=other, monitor="economy", resume=True)
    assert (other / "monitor.jsonl").read_text() == "theirs\n"
    assert {place.name for place in tmp_path.iterdir()} == {"other"}

    monkeypatch.setattr(RunFolder, "due", lambda self: True)
    place = tmp_path / "later"
    with pytest.raises(Stopped):
        cs.train(net(), data(), recipe(), folder=place, tell=stop_after(5))
    with pytest.raises(CurvescopeError, match="was not watched up to epoch 1"):
        cs.train(net(), data(), recipe(), folder=place, monitor=HOW, resume=True)
    cs.train(net(), data(), recipe(), folder=place, resume=True)


def test_a_training_without_a_folder_tells_its_events_and_numbers() -> None:
    told: list[tuple[dict[str, float], int]] = []
    how = {**HOW, "log": lambda values, step: told.append((values, step))}
    cs.train(net(), data(), recipe(epochs=1), monitor=how)
    assert [step for values, step in told if "loss" in values] == [0, 2]
