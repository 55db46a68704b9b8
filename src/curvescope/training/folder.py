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
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.training.weights import save_weights

_OVERHEAD = 20
"""Time between two saved states, as a multiple of what saving took: at most 5 % of the run."""


@dataclass(frozen=True)
class State:
    """Everything that is needed to go on after an epoch."""

    epoch: int
    tensors: Mapping[str, Tensor]


class RunFolder:
    """A folder for one run, claimed by its configuration.

    Args:
        path: The folder; made when something is written.
        config: What decides the outcome, as it will look in JSON.
        resume: Whether an unfinished run may be continued.

    Raises:
        CurvescopeError: If the folder holds something else, a run with another configuration, or
            an unfinished run that is not to be resumed. Nothing has been written then.
    """

    def __init__(self, path: io.PathLike, config: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        self._config: dict[str, Any] = json.loads(json.dumps(config))
        self._saved_at = self._saving_took = 0.0
        self._check(resume)

    def _check(self, resume: bool) -> None:
        where = f"train(folder={str(self.path)!r})"
        if self.path.exists() and not self.path.is_dir():
            msg = f"{where}: is a file; name a folder"
            raise CurvescopeError(msg)
        if not self.path.is_dir():
            return
        if not (self.path / "config.json").exists():
            # A kill before the configuration was there leaves at most the folder for weights.
            if all(_is_ours(entry) for entry in self.path.iterdir()):
                return
            msg = f"{where}: is neither empty nor the folder of a run; name another one"
            raise CurvescopeError(msg)
        different = differences(io.read_json(self.path / "config.json"), self._config)
        if different:
            msg = (
                f"{where}: holds a run with another configuration ({'; '.join(different[:6])}); "
                "name another folder, or remove this one"
            )
            raise CurvescopeError(msg)
        if not resume and not self.finished:
            msg = (
                f"{where}: holds an unfinished run; resume=True (--resume) continues it, another "
                "folder starts anew"
            )
            raise CurvescopeError(msg)

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "result.json").exists()

    @property
    def final(self) -> Path:
        """The file of the final weights."""
        return self.path / "weights" / "final.safetensors"

    def result(self) -> dict[str, Any]:
        """The result of a finished run."""
        return io.read_json(self.path / "result.json")

    def begin(self, model: nn.Module) -> None:
        """Write the configuration and the initial weights, unless they are there."""
        try:
            (self.path / "weights").mkdir(parents=True, exist_ok=True)
            for folder in (self.path, self.path / "weights"):
                for left in folder.glob(".*.part"):  # of a process that was killed
                    left.unlink()
        except OSError as error:
            msg = f"train(folder={str(self.path)!r}): cannot be made ({error.strerror})"
            raise CurvescopeError(msg) from None
        if not (self.path / "config.json").exists():
            io.write_json(self.path / "config.json", self._config)
        if not (self.path / "weights" / "initial.safetensors").exists():
            self.keep("initial", model, {"epoch": 0})

    def keep(self, name: str, model: nn.Module, notes: Mapping[str, Any]) -> None:
        """Keep the model's weights under a name."""
        known = {key: self._config[key] for key in ("recipe", "data", "penalty")}
        save_weights(self.path / "weights" / f"{name}.safetensors", model, {**known, **notes})

    def log(self, epoch: Any) -> None:
        """Add an epoch's numbers to the log."""
        io.append_json_line(self.path / "metrics.jsonl", epoch)

    def due(self) -> bool:
        """Whether enough time has passed since the last saved state."""
        return time.monotonic() - self._saved_at >= _OVERHEAD * self._saving_took

    def save(self, state: State) -> None:
        """Save the state to go on from; the log up to it reaches the disk first."""
        started = time.monotonic()
        io.flush(self.path / "metrics.jsonl")
        io.write_tensors(
            self.path / "state.safetensors", state.tensors, {"epoch": str(state.epoch)}
        )
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - started

    def epochs(self) -> list[dict[str, Any]]:
        """The log so far."""
        log = self.path / "metrics.jsonl"
        return io.read_json_lines(log) if log.exists() else []

    def load(self) -> tuple[State | None, list[dict[str, Any]]]:
        """The last saved state, if any, and the log up to it; what comes later is cut off."""
        state = None
        if (self.path / "state.safetensors").exists():
            tensors, metadata = io.read_tensors(self.path / "state.safetensors")
            epoch = metadata.get("epoch", "")
            if not epoch.isdecimal():
                self.refuse("state.safetensors does not say its epoch")
            state = State(int(epoch), tensors)
        done = state.epoch if state else 0
        epochs = self.epochs()[:done]
        if len(epochs) < done:
            self.refuse(f"the log ends at epoch {len(epochs)}, the state at {done}")
        with io.atomic(self.path / "metrics.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
        return state, epochs

    def refuse(self, damage: str) -> NoReturn:
        """Say that there are files which a run cannot have left."""
        msg = f"train(folder={str(self.path)!r}): is damaged, {damage}; start in another folder"
        raise CurvescopeError(msg)

    def finish(self, result: Any) -> None:
        """Write the result, then remove the state."""
        io.write_json(self.path / "result.json", result)
        (self.path / "state.safetensors").unlink(missing_ok=True)


def _is_ours(entry: Path) -> bool:
    if entry.name == "weights":
        return entry.is_dir() and all(inner.suffix == ".part" for inner in entry.iterdir())
    return entry.suffix == ".part" or entry.name == ".lock"


def differences(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two configurations differ, in words.

    >>> differences({"lr": 0.1, "data": {"n": 5}}, {"lr": 0.2, "data": {"n": 5}})
    ['lr is 0.1 there and 0.2 here']
    """
    if isinstance(there, dict) and isinstance(here, dict):
        return [
            line
            for key in dict.fromkeys([*there, *here])
            for line in differences(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [] if there == here else [f"{name} is {there!r} there and {here!r} here"]
