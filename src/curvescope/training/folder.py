"""The folder of a run: what it was asked to do, what it has done, and where to go on.

========================== =====================================================================
``config.json``            the recipe, the network, the data: written first, never changed
``metrics.jsonl``          one line for each epoch
``weights/``               ``initial``, ``epoch-00010`` …, ``final``: safetensors with the config
``moments/``               Adam's averages at the weights after training: JSON and safetensors
``monitor.jsonl``          what a monitor has measured, where there is one
``state.safetensors``      where to go on; gone when the run is finished
``result.json``            the end: its presence says that the run is finished
========================== =====================================================================

Every file is replaced in one step, so that a kill at any moment leaves a folder that is either
finished or can be continued. Only the log grows line by line; a torn line is cut off on resuming.
Every file carries a checksum that also holds the configuration: one of another run is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.monitor.log import LOG
from curvescope.training.moments import Moments
from curvescope.training.records import Epoch, Result, Training
from curvescope.training.weights import load_weights, save_weights

_OVERHEAD = 20
"""Time between two saved states, as a multiple of what saving took: at most 5 % of the run."""


@dataclass(frozen=True)
class State:
    """Everything that is needed to go on after an epoch."""

    epoch: int
    tensors: Mapping[str, Tensor]
    monitor: Mapping[str, Any] | None = None  # what is no tensor of a monitor's state


class TrainingFolder:
    """The folder of a run, for reading.

    Args:
        path: A folder with a ``config.json`` of a training.

    Raises:
        CurvescopeError: If there is none, or it is damaged or of another version.
    """

    def __init__(self, path: io.PathLike) -> None:
        self.path = Path(path)
        self.config = io.load(self.path / "config.json", Training, remedy="train again")
        self._owner = identity_of(self.config)

    def result(self) -> Result | None:
        """How the run ended; None while it has not."""
        return result_of(self.path, self._owner)

    def epochs(self) -> list[Epoch]:
        """The log so far; all of it, where the run is finished."""
        epochs, result = epochs_of(self.path, self._owner), self.result()
        if result is not None and len(epochs) != done_of(self.config, result):
            damage = "metrics.jsonl lacks epochs or has too many"
            rule = f"is damaged, {damage}"
            raise CurvescopeError(repr(str(self.path)), rule, remedy="train again")
        return epochs

    def weights(self, name: str) -> Path:
        """The file of this run's weights, ``initial``, ``epoch-00010`` or ``final``.

        Raises:
            CurvescopeError: If it is missing, damaged, or of another run.
        """
        file = self.path / "weights" / f"{name}.safetensors"
        _check_weights(file, self._owner, self._epoch(name))
        return file

    def moments(self, name: str) -> Moments:
        """Adam's averages at the weights of this name, ``epoch-00010`` or ``final``.

        Raises:
            CurvescopeError: If they are missing, as those of a run by SGD, damaged, or of another
                run.
        """
        file = self.path / "moments" / f"{name}.json"
        moments = io.load(file, Moments, owner=self._owner, remedy="train with Adam")
        if moments.epoch != self._epoch(name):
            rule = "is of another epoch"
            raise CurvescopeError(repr(str(file)), rule, remedy="train again")
        return moments

    def _epoch(self, name: str) -> int:
        """The epoch after which weights of this name were kept."""
        if name.startswith("epoch-") and name[6:].isdecimal():
            return int(name[6:])
        return 0 if name == "initial" else self.config.recipe.epochs


class RunFolder:
    """A folder for one run, claimed by its configuration.

    Args:
        path: The folder; made when something is written.
        config: What decides the outcome.
        resume: Whether an unfinished run may be continued.

    Raises:
        CurvescopeError: If the folder holds something else, a run with another configuration, or
            an unfinished run that is not to be resumed. Nothing has been written then.
    """

    def __init__(self, path: io.PathLike, config: Training, *, resume: bool) -> None:
        self.path = Path(path)
        self._config, self._owner = config, identity_of(config)
        self._saved_at = self._saving_took = 0.0
        self._state = io.Checkpoint(
            self.path / "state.safetensors", {"run": self._owner}, where="train", what="run",
            remedy="start in another folder",
        )  # fmt: skip
        io.refuse_others(self.path, config)
        if not resume and not self.finished and (self.path / "config.json").exists():
            remedy = "`resume=True` continues it, another folder starts anew"
            raise CurvescopeError(repr(str(self.path)), "holds an unfinished run", remedy=remedy)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes out while the block runs; the configuration is written first."""
        with io.claimed(self.path, self._config):
            yield

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "result.json").exists()

    def end(self, model: nn.Module) -> tuple[Result, tuple[Epoch, ...]]:
        """The result of a finished run and its log; its final weights are put into the model."""
        result = result_of(self.path, self._owner)
        if result is None:
            self.refuse("result.json is gone")
        epochs = epochs_of(self.path, self._owner)
        done = done_of(self._config, result)
        if len(epochs) != done:
            self.refuse(f"the log ends at epoch {len(epochs)}, the run at {done}")
        if result.diverged is None:
            final = self.path / "weights" / "final.safetensors"
            _check_weights(final, self._owner, done)
            load_weights(final, model)
        self._tidy()
        return result, tuple(epochs)

    def _tidy(self) -> None:
        """Remove what a process has left that was killed at the very end."""
        places = (self.path, self.path / "weights", self.path / "moments")
        left = [part for place in places for part in io.part_files(place)]
        if not left and not self._state.path.exists():
            return
        # a folder may be read without being ours to write
        with suppress(OSError, CurvescopeError), io.held(self.path):
            self._state.remove()
            io.remove_parts(*places)

    def begin(self, model: nn.Module) -> None:
        """Write the initial weights, unless they are there."""
        weights = io.make_folder(self.path / "weights")
        io.remove_parts(weights, self.path / "moments")
        if not (weights / "initial.safetensors").exists():
            self.keep("initial", model, {"epoch": 0})

    def keep(self, name: str, model: nn.Module, notes: Mapping[str, Any]) -> None:
        """Keep the model's weights under a name."""
        plain = io.encode(self._config)[0]
        about = {key: plain[key] for key in ("recipe", "data", "penalty")}
        file = self.path / "weights" / f"{name}.safetensors"
        save_weights(file, model, {**about, **notes, "run": self._owner})

    def keep_moments(self, name: str, moments: Moments) -> None:
        """Keep Adam's averages beside the weights of this name."""
        folder = io.make_folder(self.path / "moments")
        io.save(folder / f"{name}.json", moments, owner=self._owner)

    def log(self, epoch: Epoch) -> None:
        """Add an epoch's numbers to the log."""
        io.append_line(self.path / "metrics.jsonl", epoch, owner=self._owner)

    def due(self) -> bool:
        """Whether enough time has passed since the last saved state."""
        return time.monotonic() - self._saved_at >= _OVERHEAD * self._saving_took

    def save(self, state: State) -> None:
        """Save the state to go on from; the log up to it reaches the disk first."""
        started = time.monotonic()
        io.flush(self.path / "metrics.jsonl")
        if state.monitor is not None and (self.path / LOG).exists():
            io.flush(self.path / LOG)
        self._state.save(state.tensors, {"epoch": state.epoch, "monitor": state.monitor})
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - started

    def load(self) -> tuple[State | None, list[Epoch]]:
        """The last saved state, if any, and the log up to it; what comes later is cut off."""
        saved = self._state.load()
        state = None if saved is None else State(tensors=saved.tensors, **saved.notes)
        done = state.epoch if state else 0
        epochs = epochs_of(self.path, self._owner, until=done)
        if len(epochs) < done:
            self.refuse(f"the log ends at epoch {len(epochs)}, the state at {done}")
        log = self.path / "metrics.jsonl"
        with io.atomic(log) as temporary:
            lines = "".join(io.line(log, epoch, owner=self._owner) for epoch in epochs)
            temporary.write_text(lines, encoding="utf-8")
        return state, epochs

    def refuse(self, damage: str) -> NoReturn:
        """Say that there are files which a run cannot have left."""
        rule = f"is damaged, {damage}"
        remedy = "start in another folder"
        raise CurvescopeError(f"train(folder={str(self.path)!r})", rule, remedy=remedy)

    def finish(self, result: Result) -> None:
        """Write the result, then remove the state."""
        io.save(self.path / "result.json", result, owner=self._owner)
        self._state.remove()


def identity_of(config: Training) -> str:
    """By what the files of a run know that they belong to it."""
    return str(io.pack(config)["checksum"])


def done_of(config: Training, result: Result) -> int:
    """The epochs of a finished run: one that diverged ends before its last."""
    return config.recipe.epochs if result.diverged is None else result.diverged - 1


def result_of(folder: Path, owner: str) -> Result | None:
    """How a run ended; None while it has not."""
    file = folder / "result.json"
    return io.load(file, Result, owner=owner, remedy="train again") if file.exists() else None


def epochs_of(folder: Path, owner: str, *, until: int | None = None) -> list[Epoch]:
    """The epochs of a log, in order; those after ``until`` are not looked at.

    Raises:
        CurvescopeError: If a line is damaged or of another run, or an epoch is missing.
    """
    log = folder / "metrics.jsonl"
    if not log.exists():
        return []
    epochs = io.load_lines(log, Epoch, owner=owner, until=until, remedy="train again")
    if [epoch.epoch for epoch in epochs] != list(range(1, len(epochs) + 1)):
        rule = "is damaged, an epoch is missing or stands there twice"
        raise CurvescopeError(repr(str(log)), rule, remedy="train again")
    return epochs


def _check_weights(file: Path, owner: str, epoch: int) -> None:
    notes = io.read_notes(file)
    if (notes.get("run"), notes.get("epoch")) != (owner, epoch):
        rule = "is of another run or another epoch"
        raise CurvescopeError(repr(str(file)), rule, remedy="train again")
