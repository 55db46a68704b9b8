"""The directory of an analysis: what was asked, and the results, stage by stage.

============================= ==================================================================
``config.json``               everything that decides the numbers: written first, never changed
``stages/NAME/result.json``   a finished stage: its numbers, self-checks, seed, time, versions
``stages/NAME/arrays.safetensors``  its arrays
``stages/NAME/work/``         where an unfinished stage goes on
``report.html``, ``figures/`` made from the above alone
============================= ==================================================================

A stage is finished when its ``result.json`` is there, which is written last and in one step. A kill
at any moment leaves finished stages and at most one that is computed again, from its last
checkpoint. Nothing in the directory is executed when it is read.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import Tensor

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.experiments.checks import Check
from curvescope.experiments.environment import environment
from curvescope.experiments.lock import locked
from curvescope.identity import digest
from curvescope.training.folder import differences

FORMAT = 1
KIND = "analysis"
_RECORDED = {"values", "arrays", "checks", "seed", "seconds", "finished", "environment"}


@dataclass(frozen=True)
class Outcome:
    """What the computation of a stage returns: numbers, arrays, and what they were held against."""

    values: Mapping[str, Any]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A finished stage as it lies on the disk."""

    name: str
    values: dict[str, Any]
    arrays: dict[str, Tensor]
    checks: tuple[Check, ...]
    seed: int
    seconds: float
    finished: str  # UTC, ISO 8601
    environment: dict[str, Any]


class RunDirectory:
    """A run directory for reading; :func:`open_for_work` adds stages.

    Args:
        path: A folder with a ``config.json`` of an analysis.

    Raises:
        CurvescopeError: If there is none, or it is damaged or of a later version.
    """

    def __init__(self, path: io.PathLike) -> None:
        self.path = Path(path)
        where = f"RunDirectory({str(path)!r})"
        if not (self.path / "config.json").is_file():
            msg = f"{where}: holds no analysis; make one with curvescope analyse --out DIR"
            raise CurvescopeError(msg)
        self.config = _config(where, io.read_json(self.path / "config.json"))

    @property
    def expected(self) -> tuple[str, ...]:
        """The stages that the configuration asks for, in order."""
        return tuple(map(str, self.config["stages"]))

    @property
    def stages(self) -> tuple[str, ...]:
        """The finished stages, in order."""
        return tuple(name for name in self.expected if self.has(name))

    @property
    def complete(self) -> bool:
        """Whether every stage is finished."""
        return self.stages == self.expected

    def has(self, name: str) -> bool:
        """Whether a stage is finished."""
        return (self.folder(name) / "result.json").is_file()

    def folder(self, name: str) -> Path:
        """Where a stage lies."""
        return self.path / "stages" / name

    def stage(self, name: str) -> Stage:
        """A finished stage with its arrays.

        Raises:
            CurvescopeError: If it is not finished, or its files are damaged.
        """
        record, where = self.record(name), self._where(name)
        arrays: dict[str, Tensor] = {}
        metadata: dict[str, str] = {}
        if record["arrays"] is not None:
            arrays, metadata = io.read_tensors(self.folder(name) / "arrays.safetensors")
        if metadata.get("stamp") != record["arrays"]:
            msg = f"{where}: its numbers and arrays are of different runs; remove the stage"
            raise CurvescopeError(msg)
        known = {key: record[key] for key in ("seed", "seconds", "finished", "environment")}
        return Stage(name, record["values"], arrays, _checks_of(record), **known)

    def record(self, name: str) -> dict[str, Any]:
        """The numbers of a finished stage without its arrays, as they stand in its file.

        Raises:
            CurvescopeError: If it is not finished, or its file is damaged.
        """
        if name not in self.expected or not self.has(name):
            done = ", ".join(self.stages) or "none"
            msg = f"{self._where(name)}: is not finished; finished are: {done}"
            raise CurvescopeError(msg)
        record = io.read_json(self.folder(name) / "result.json")
        try:
            if not _RECORDED <= record.keys():
                raise KeyError
            _checks_of(record)
        except (AttributeError, KeyError, TypeError):
            msg = f"{self._where(name)}: result.json is damaged; remove the stage and analyse again"
            raise CurvescopeError(msg) from None
        return record

    def checks(self) -> list[tuple[str, Check]]:
        """All self-checks with their stages."""
        return [(name, check) for name in self.stages for check in _checks_of(self.record(name))]

    def _where(self, name: str) -> str:
        return f"RunDirectory({str(self.path)!r}).stage({name!r})"


def _checks_of(record: Mapping[str, Any]) -> tuple[Check, ...]:
    return tuple(Check(**check) for check in record["checks"])


class OpenRun(RunDirectory):
    """A run directory that this process may add stages to."""

    def compute(
        self, name: str, work: Callable[[Path], Outcome], *, seed: int, device: Any = "cpu"
    ) -> Stage:
        """The stage, read if it is finished, else computed and written.

        Args:
            name: One of the configuration's stages.
            work: Computes it; receives a folder for checkpoints, which is there until the stage is
                finished.
            seed: What its random numbers start from; noted.
            device: Where it is computed; noted.

        Raises:
            CurvescopeError: If the disk is full or protected; finished stages stay as they are.
        """
        if self.has(name):
            return self.stage(name)
        folder = self.folder(name)
        try:
            (folder / "work").mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            outcome = work(folder / "work")
            seconds = time.perf_counter() - began
        except OSError as error:
            if error.filename is not None and not Path(str(error.filename)).is_relative_to(folder):
                raise  # not ours: the user's data, say
            msg = (
                f"{str(folder)!r}: cannot be written ({error.strerror or error}); make room or "
                "check its permissions, then run the same again: finished stages are kept"
            )
            raise CurvescopeError(msg) from None
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        stamp = digest(self.config, name, finished, seconds)[:16]
        if outcome.arrays:
            io.write_tensors(folder / "arrays.safetensors", outcome.arrays, {"stamp": stamp})
        record = {
            "values": outcome.values,
            "arrays": stamp if outcome.arrays else None,
            "checks": [asdict(check) for check in outcome.checks],
            "seed": seed,
            "seconds": seconds,
            "finished": finished,
            "environment": environment(device),
        }
        io.write_json(folder / "result.json", record)
        shutil.rmtree(folder / "work", ignore_errors=True)
        return self.stage(name)


@contextmanager
def open_for_work(path: io.PathLike, config: Mapping[str, Any]) -> Iterator[OpenRun]:
    """A run directory to add stages to, for this process alone while the block runs.

    Args:
        path: A folder that is new, empty, or holds a run with the same configuration.
        config: What decides the numbers, as it will look in JSON; ``stages`` lists the stages.

    Raises:
        CurvescopeError: If the folder holds something else, or a run with another configuration
            (the message shows the difference), or another process works in it; nothing has been
            changed then.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "run"
    >>> with open_for_work(place, {"stages": ["one"], "seed": 0}) as run:
    ...     _ = run.compute("one", lambda work: Outcome({"answer": 42}), seed=0)
    >>> RunDirectory(place).stage("one").values
    {'answer': 42}
    >>> with open_for_work(place, {"stages": ["one"], "seed": 1}):
    ...     pass
    Traceback (most recent call last):
    curvescope._checks.CurvescopeError: ...: holds a run with another configuration (seed is 0 there
    and 1 here); name another folder with --out, or remove this one
    """
    with claimed(path, KIND, config) as place:
        yield OpenRun(place)


@contextmanager
def claimed(path: io.PathLike, kind: str, config: Mapping[str, Any]) -> Iterator[Path]:
    """A folder of one kind and configuration, for this process alone while the block runs.

    Args:
        path: A folder that is new, empty, or holds the same with the same configuration.
        kind: What the folder holds, one word.
        config: What decides the numbers, as it will look in JSON; it is written first.

    Raises:
        CurvescopeError: As for :func:`open_for_work`.
    """
    place, wanted = Path(path), json.loads(json.dumps({"kind": kind, "format": FORMAT, **config}))
    try:
        _refuse_foreign(place, wanted)
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{str(place)!r}: cannot be used ({error.strerror}); name another folder with --out"
        raise CurvescopeError(msg) from None
    with locked(place):
        _refuse_foreign(place, wanted)  # another process may have been quicker
        if not (place / "config.json").exists():
            io.write_json(place / "config.json", wanted)
        yield place


def _refuse_foreign(place: Path, wanted: dict[str, Any]) -> None:
    """Refuse a folder that is not ours, before anything is changed."""
    where = f"{str(place)!r}"
    if place.exists() and not place.is_dir():
        msg = f"{where}: is a file; name a folder with --out"
        raise CurvescopeError(msg)
    if (place / "config.json").exists():
        there = _known(where, io.read_json(place / "config.json"), wanted["kind"])
        different = differences(there, wanted)
        if different:
            more = f"; and {len(different) - 6} more" if len(different) > 6 else ""
            msg = (
                f"{where}: holds a run with another configuration ({'; '.join(different[:6])}"
                f"{more}); name another folder with --out, or remove this one"
            )
            raise CurvescopeError(msg)
    elif place.is_dir() and any(entry.name != ".lock" for entry in place.iterdir()):
        msg = f"{where}: is neither empty nor a run directory; name another folder with --out"
        raise CurvescopeError(msg)


def _known(where: str, config: Any, kind: str) -> dict[str, Any]:
    """A configuration of this kind that this version understands."""
    if not isinstance(config, dict) or config.get("kind") != kind:
        msg = f"{where}: holds no {kind}, but something else with a config.json"
        raise CurvescopeError(msg)
    if config.get("format") != FORMAT:
        msg = f"{where}: has format {config.get('format')!r}, this version reads {FORMAT}; update"
        raise CurvescopeError(msg)
    return config


def _config(where: str, config: Any) -> dict[str, Any]:
    """The configuration of an analysis, with stages that have plain names."""
    config = _known(where, config, KIND)
    stages = config.get("stages")
    if not isinstance(stages, list) or not all(_plain(name) for name in stages):
        msg = f"{where}: config.json is damaged, its stages are {stages!r}"
        raise CurvescopeError(msg)
    return config


def _plain(name: Any) -> bool:
    """Whether a stage's name is one: a folder's name that leads nowhere else."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) is not None
