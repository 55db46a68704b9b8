"""Training with a monitor gives the same bits as without it, and a resumed log the same lines."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import curvescope as cs

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(1)


def network(*extra: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *(make() for make in extra), nn.Tanh(), nn.Linear(8, 3))


def train(
    model: nn.Module,
    *,
    watched: bool,
    steps: int = 6,
    accumulate: int = 1,
    autocast: bool = False,
    inside: bool = False,
) -> list[Any]:
    """Everything that training leaves behind, as tensors."""
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = None
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(X, Y), batch_size=16, shuffle=True
    )
    if watched:
        monitor = cs.Monitor(
            model, loader if inside else (X[:32], Y[:32]), optimizer=opt, track="full", every=2,
            generator=torch.Generator().manual_seed(5),
        )  # fmt: skip
    batches = iter([batch for _ in range(steps * accumulate) for batch in loader])
    for number in range(1, steps + 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for _ in range(accumulate):
                x, y = next(batches)
                loss = nn.functional.cross_entropy(model(x).float(), y) / accumulate
                loss.backward()
            opt.step()
            record = None if monitor is None else monitor.step(loss=loss)
        before = [p.grad.clone() for p in model.parameters()]
        assert (record is not None) == (watched and number % 2 == 0)
        opt.zero_grad()
    states: list[Tensor] = [
        value for state in opt.state.values() for value in state.values() if torch.is_tensor(value)
    ]
    return [
        *model.state_dict().values(), *states, *before, torch.get_rng_state(), torch.rand(3),
        torch.tensor(np.random.rand(3)), torch.tensor(random.random()),
        torch.tensor([m.training for m in model.modules()]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "how"),
    [
        ((), {}),
        ((partial(nn.Dropout, 0.5),), {"inside": True}),
        ((partial(nn.BatchNorm1d, 8),), {}),
        ((partial(nn.Dropout, 0.3),), {"accumulate": 3}),
        ((), {"autocast": True}),
    ],
    ids=["plain", "dropout and a shuffling probe", "batch norm", "accumulation", "bfloat16"],
)
def test_training_is_equal_to_the_bit(
    extra: tuple[Callable[[], nn.Module], ...], how: dict[str, Any]
) -> None:
    alone = train(network(*extra), watched=False, **how)
    watched = train(network(*extra), watched=True, **how)
    assert len(alone) == len(watched)
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))


TIMES = ("seconds", "share")


def lines(log: cs.monitor.MonitorLog) -> list[tuple[int, dict[str, float]]]:
    return [
        (r.step, {k: v for k, v in r.values.items() if not k.endswith(TIMES)}) for r in log.records
    ]


def watched(folder: Path, state: dict[str, Any] | None, start: int, stop: int) -> dict[str, Any]:
    """Steps ``start`` to ``stop`` of one training; its checkpoint at the end."""
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    state = copy.deepcopy(state)  # an optimizer goes on with the tensors of its state
    if state is not None:
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
    g = torch.Generator().manual_seed(5)
    monitor = cs.Monitor(model, (X, Y), optimizer=opt, every=2, log=folder, generator=g)
    if state is not None:
        monitor.load_state_dict(state["monitor"])
    for _ in range(start, stop):
        nn.functional.cross_entropy(model(X), Y).backward()
        opt.step()
        opt.zero_grad()
        monitor.step()
    parts = {"model": model.state_dict(), "opt": opt.state_dict(), "monitor": monitor.state_dict()}
    torch.save(parts, folder.with_suffix(".pt"))
    loaded: dict[str, Any] = torch.load(folder.with_suffix(".pt"), weights_only=True)
    return loaded


def test_a_resumed_log_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    watched(whole, None, 0, 9)
    state = watched(cut, None, 0, 3)
    again = watched(cut, state, 3, 8)  # goes on, and is stopped without a checkpoint …
    assert again["monitor"]["step"] == 8
    with pytest.raises(cs.CurvescopeError, match="holds the log of an earlier training"):
        watched(cut, None, 0, 2)
    watched(cut, state, 3, 9)  # … so that it begins at step 3 once more
    a, b = cs.monitor.read_log(whole), cs.monitor.read_log(cut)
    assert lines(a) == lines(b)
    assert [step for step, _ in lines(b)] == [0, 2, 4, 6, 8]
    assert a.events == b.events
    assert a.header == b.header
    state["monitor"]["identity"] = "another"
    with pytest.raises(cs.CurvescopeError, match="another model, probe, loss or track"):
        watched(cut, state, 3, 4)
