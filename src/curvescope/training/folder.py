"""The folder of a run: what it was asked to do, what it has done, and where to go on.

========================== =====================================================================
``config.json``            the recipe, the network, the data: written first, never changed
``metrics.jsonl``          one line for each epoch
``weights/``               ``initial``, ``epoch-00010`` …, ``final``: safetensors with the config
``state.safetensors``      where to go on; gone when the run is finished
``result.json``            the end: its presence says that the run is finished
========================== =====================================================================

Every file is replaced in one step, so that a kill at any moment leaves a folder that is either
finished or can be continued. Only the log grows line by line; a torn line is cut off on resuming.
Every file carries a checksum that also holds the configuration: one of another run is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn

from curvescope import io
from curvescope.errors import CurvescopeError, mention
from curvescope.training.records import Epoch, Result, Training
from curvescope.training.weights import load_weights, save_weights

_OVERHEAD = 20
"""Time between two saved states, as a multiple of what saving took: at most 5 % of the run."""


@dataclass(frozen=True)
class State:
    """Everything that is needed to go on after an epoch."""

    epoch: int
    tensors: Mapping[str, Tensor]


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
        """The file of kept weights, ``initial`` or ``final``, if they are those of this run.

        Raises:
            CurvescopeError: If it is missing, damaged, or of another run.
        """
        file = self.path / "weights" / f"{name}.safetensors"
        _check_weights(file, self._owner, 0 if name == "initial" else self.config.recipe.epochs)
        return file


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
        self._check(resume)

    def _check(self, resume: bool) -> None:
        where = f"train(folder={str(self.path)!r})"
        if self.path.exists() and not self.path.is_dir():
            raise CurvescopeError(where, "is a file", remedy="name a folder")
        if not self.path.is_dir():
            return
        if not (self.path / "config.json").exists():
            # A kill before the configuration was there leaves at most the folder for weights.
            if all(_is_ours(entry) for entry in self.path.iterdir()):
                return
            rule = "is neither empty nor the folder of a run"
            raise CurvescopeError(where, rule, remedy="name another one")
        remedy = "name another folder, or remove this one"
        there = io.load(self.path / "config.json", Training, remedy=remedy)
        different = differences(io.encode(there)[0], io.encode(self._config)[0])
        if different:
            raise CurvescopeError(
                where,
                f"holds a run with another configuration ({'; '.join(different[:6])})",
                remedy=remedy,
                remedy_cli="name another folder with --out, or remove it",
            )
        if not resume and not self.finished:
            remedy = "`resume=True` continues it, another folder starts anew"
            raise CurvescopeError(where, "holds an unfinished run", remedy=remedy)

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
        with suppress(OSError, CurvescopeError):  # a folder may be read without being ours to write
            (self.path / "state.safetensors").unlink(missing_ok=True)
            io.remove_parts(self.path, self.path / "weights")

    def begin(self, model: nn.Module) -> None:
        """Write the configuration and the initial weights, unless they are there."""
        try:
            (self.path / "weights").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rule = f"cannot be made ({error.strerror})"
            raise CurvescopeError(f"train(folder={str(self.path)!r})", rule) from None
        io.remove_parts(self.path, self.path / "weights")
        if not (self.path / "config.json").exists():
            io.save(self.path / "config.json", self._config)
        if not (self.path / "weights" / "initial.safetensors").exists():
            self.keep("initial", model, {"epoch": 0})

    def keep(self, name: str, model: nn.Module, notes: Mapping[str, Any]) -> None:
        """Keep the model's weights under a name."""
        plain = io.encode(self._config)[0]
        known = {key: plain[key] for key in ("recipe", "data", "penalty")}
        file = self.path / "weights" / f"{name}.safetensors"
        save_weights(file, model, {**known, **notes, "run": self._owner})

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
        notes = {"epoch": str(state.epoch), "run": self._owner}
        io.write_tensors(self.path / "state.safetensors", state.tensors, notes)
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - started

    def load(self) -> tuple[State | None, list[Epoch]]:
        """The last saved state, if any, and the log up to it; what comes later is cut off."""
        state = None
        if (self.path / "state.safetensors").exists():
            file = self.path / "state.safetensors"
            tensors, metadata = io.read_tensors(file, ours=True, links=False)
            epoch = metadata.get("epoch", "")
            if not epoch.isdecimal() or metadata.get("run") != self._owner:
                self.refuse("state.safetensors does not say its epoch, or is of another run")
            state = State(int(epoch), tensors)
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
        (self.path / "state.safetensors").unlink(missing_ok=True)


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


def _is_ours(entry: Path) -> bool:
    if entry.name == "weights":
        return entry.is_dir() and all(inner.suffix == ".part" for inner in entry.iterdir())
    return entry.suffix == ".part" or entry.name == ".lock"


def differences(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two configurations differ, in words for the rule of an error.

    >>> differences({"lr": 0.1, "data": {"n": 5}}, {"lr": 0.2, "data": {"n": 5}})
    ['`lr` is 0.1 there and 0.2 here']
    """
    if isinstance(there, dict) and isinstance(here, dict):
        return [
            line
            for key in dict.fromkeys([*there, *here])
            for line in differences(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if there == here else [f"{mention(name)} is {there!r} there and {here!r} here"]
