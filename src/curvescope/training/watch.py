"""A training of ours with a monitor: what is watched, when, and how its state is kept.

The monitor lives in the run: its log lies in the run's folder, and its state is saved with the
weights, so that a resumed run's log goes on where that state was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.monitor import PRESETS, Monitor
from curvescope.monitor.log import LOG
from curvescope.problem.losses import Loss
from curvescope.training.optimizers import Optimizer

Options = str | Mapping[str, Any]
"""``"economy"``, ``"standard"``, ``"full"``, or keywords: see :func:`curvescope.train`."""

_FEWEST, _MOST = 64, 512
_OWN = ("generator", "model", "optimizer", "loss")
_TENSOR = "monitor."


class Watch:
    """A monitor whose steps a learner takes, and its state as tensors and plain JSON."""

    def __init__(
        self,
        options: Options,
        model: nn.Module,
        optimizer: Optimizer,
        loss: Loss,
        data: tuple[Tensor, Tensor],
        *,
        seed: int,
        batch_size: int,
        folder: Path | None,
        resumed: bool,
    ) -> None:
        given: dict[str, Any] = {"track": options} if isinstance(options, str) else dict(options)
        started: Callable[[Monitor], object] | None = given.pop("on_start", None)
        generator = torch.Generator().manual_seed(seed)
        count = max(_FEWEST, min(batch_size, _MOST))
        probe = given.pop("probe", count)
        if isinstance(probe, int):
            probe = _sample(data, _checks.positive_int("train(monitor)", "probe", probe), generator)
        log = given.pop("log", None)
        places = [*log] if isinstance(log, list | tuple) else [] if log is None else [log]
        if folder is not None:
            places.append(folder)
            if not resumed:  # of a try that was stopped before its first state
                (folder / LOG).unlink(missing_ok=True)
        self.monitor = Monitor(
            model, probe, loss=loss, optimizer=optimizer, generator=generator, log=places, **given
        )
        if started is not None:
            started(self.monitor)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state that belongs to the weights of now: tensors by name, and the rest as JSON."""
        state = self.monitor.state_dict()
        vectors, generator = state.pop("vectors"), state.pop("generator")
        tensors = {f"{_TENSOR}vectors.{name}": tensor for name, tensor in vectors.items()}
        return {**tensors, f"{_TENSOR}generator": generator}, state

    def restore(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Go on from a saved state; later lines of the log are cut."""
        start = f"{_TENSOR}vectors."
        vectors = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
        generator = tensors[f"{_TENSOR}generator"]
        self.monitor.load_state_dict({**rest, "vectors": vectors, "generator": generator})


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a training's state, and those of its monitor."""
    mine = {name: tensor for name, tensor in tensors.items() if name.startswith(_TENSOR)}
    return {name: tensor for name, tensor in tensors.items() if name not in mine}, mine


def check(where: str, options: Options, runs: int, folders: Sequence[Any] | None) -> None:
    """Refuse what cannot be watched, before anything is written."""
    if runs > 1:
        rule = "a monitor measures its share of the time of one training"
        raise CurvescopeError(where, rule, remedy="train one network after the other")
    given: Mapping[str, Any] = {"track": options} if isinstance(options, str) else options
    if isinstance(options, str):
        _checks.one_of(where, "monitor", options, PRESETS)
    for name in _OWN:
        if name in given:
            rule = f"`{name}` is that of the training"
            raise CurvescopeError(f"{where}(monitor)", rule, remedy="leave it out")
    if folders is None:
        if not {"log", "on_event"} & given.keys():
            rule = "a monitor writes into the run's folder, and there is none"
            raise CurvescopeError(where, rule, remedy="give a `folder`, or a `log` to the monitor")
        return
    folder = Path(folders[0])
    if (folder / LOG).exists() and not (folder / "config.json").exists():
        rule = "holds the log of another training"
        raise CurvescopeError(repr(str(folder / LOG)), rule, remedy="name another folder")


def _sample(
    data: tuple[Tensor, Tensor], count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """So many of the training samples, drawn at random."""
    X, y = data
    rows = torch.randperm(len(y), generator=generator)[:count].to(X.device)
    return X[rows], y[rows]
