"""The directory of an analysis: its configuration and the results of its stages.

================================== =============================================================
``config.json``                    the configuration, which determines all numbers; written first
``stages/NAME/result.json``        a finished stage: result, self-checks, seed, time, versions
``stages/NAME/result.safetensors`` the tensors of the result
``stages/NAME/work/``              checkpoints of an unfinished stage
``report.html``, ``figures/``      made from the files above
================================== =============================================================

A stage is finished when its ``result.json`` exists, which is written last and in one step. A kill
at any moment loses no finished stage, and the stage that was running resumes from its last
checkpoint. Reading the directory executes nothing. Files that were edited, or copied from another
directory, are refused.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Generic, TypeVar

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.checks import Check
from curvescope.experiments.configuration import Analysis
from curvescope.experiments.environment import environment
from curvescope.ranks import Group

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What the computation of a stage returns: a result and its self-checks."""

    result: T
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Finding(Generic[T]):
    """A result about a layer or the whole network, or the reason why there can be none.

    ``left_out`` is a property of the model, the loss or the data, so computing the stage again
    would not help.
    """

    subject: str  # the layer's name; empty for the whole network
    value: T | None
    left_out: str = ""


@dataclass(frozen=True)
class Stage(Generic[T]):
    """A finished stage, as ``result.json`` stores it."""

    name: str
    run: str  # the checksum of the configuration that it belongs to
    result: T
    checks: tuple[Check, ...]
    seed: int
    seconds: float
    finished: str  # UTC, ISO 8601
    environment: dict[str, Any]


class RunDirectory:
    """A run directory, read-only; :func:`open_for_work` opens one to add stages.

    Args:
        path: A folder with a ``config.json`` of an analysis.

    Raises:
        CurvescopeError: If there is none, or it is damaged or of another version.
    """

    def __init__(self, path: io.PathLike) -> None:
        self.path = Path(path)
        if not (self.path / "config.json").exists():
            rule = "holds no analysis"
            remedy = "make one with curvescope analyze --out DIR"
            raise CurvescopeError(f"RunDirectory({str(path)!r})", rule, remedy=remedy)
        self.config = io.load(self.path / "config.json", Analysis, remedy="analyze again")
        self._identity = io.pack(self.config)["checksum"]

    @property
    def expected(self) -> tuple[str, ...]:
        """The stages of the configuration, in order."""
        return self.config.stages

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
        return name in self.expected and self._file(name).exists()

    def folder(self, name: str) -> Path:
        """The folder of a stage."""
        return self.path / "stages" / name

    def stage(self, name: str, kind: type[T]) -> Stage[T]:
        """A finished stage.

        Args:
            name: One of the configuration's stages.
            kind: The type of its result; ``Any`` reads plain JSON, without tensors.

        Raises:
            CurvescopeError: If it is not finished, or its files are damaged or of another run.
        """
        if not self.has(name):
            done = ", ".join(self.stages) or "none"
            remedy = f"finished are: {done}"
            raise CurvescopeError(self._where(name), "is not finished", remedy=remedy)
        remedy = f"remove {str(self.folder(name))!r} and analyze again"
        stage = io.load(self._file(name), Stage[kind], remedy=remedy)  # type: ignore[valid-type]
        if (stage.name, stage.run) != (name, self._identity):
            rule = "belongs to another stage or another analysis"
            raise CurvescopeError(self._where(name), rule, remedy=remedy)
        return stage

    def result(self, name: str, kind: type[T]) -> T:
        """The result of a finished stage; see :meth:`stage`."""
        return self.stage(name, kind).result

    def checks(self) -> list[tuple[str, Check]]:
        """All self-checks with their stages."""
        return [(name, check) for name in self.stages for check in self.stage(name, Any).checks]

    def _file(self, name: str) -> Path:
        return self.folder(name) / "result.json"

    def _where(self, name: str) -> str:
        return f"{str(self.path)!r}, stage {name!r}"


class OpenRun(RunDirectory):
    """A run directory to which this process, or with a ``group`` its rank 0, may add stages."""

    def __init__(self, path: io.PathLike, group: Group) -> None:
        super().__init__(path)
        self._group = group

    def compute(
        self,
        name: str,
        kind: type[T],
        work: Callable[[Path], Outcome[T]],
        *,
        seed: int,
        device: Any = "cpu",
    ) -> Stage[T]:
        """The stage: read if it is finished, otherwise computed and written.

        Args:
            name: One of the configuration's stages.
            kind: The type of its result.
            work: Computes it. Its argument is a folder for checkpoints, which is removed once the
                stage is finished.
            seed: The seed of its random numbers; recorded with the result.
            device: The device on which it is computed; recorded with the result.

        Raises:
            CurvescopeError: If the disk is full or write-protected; finished stages are unaffected.
        """
        folder = self.folder(name)
        if self._group.plain(self.has(name)):
            self._remove_work(name)  # left by a kill at the end
            return self.stage(name, kind)
        try:
            (folder / "work").mkdir(parents=True, exist_ok=True)
            io.remove_parts(folder, folder / "work")
            began = time.perf_counter()
            outcome = work(folder / "work")
            seconds = time.perf_counter() - began
        except OSError as error:
            if error.filename is not None and not Path(str(error.filename)).is_relative_to(folder):
                raise  # a file outside the run, such as the user's data
            raise CurvescopeError(
                repr(str(folder)),
                f"cannot be written ({error.strerror or error})",
                remedy="make room or check its permissions, then run the same again: finished "
                "stages are kept",
            ) from None
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        stage = Stage(
            name, self._identity, outcome.result, outcome.checks, seed, seconds, finished,
            environment(device),
        )  # fmt: skip
        io.save(self._file(name), stage, Stage[kind])  # type: ignore[valid-type]
        self._group.agree(True)  # that it is written
        self._remove_work(name)
        return self.stage(name, kind)

    def _remove_work(self, name: str) -> None:
        if io.writes():
            shutil.rmtree(self.folder(name) / "work", ignore_errors=True)


@contextmanager
def open_for_work(
    path: io.PathLike, config: Analysis, group: Group | None = None
) -> Iterator[OpenRun]:
    """Open a run directory to add stages; no other process can do so while the block runs.

    Args:
        path: A folder that is new, empty, or holds a run with the same configuration.
        config: The configuration, which determines all numbers of the run.
        group: The ranks that compute the stages together; rank 0 of them opens it.

    Raises:
        CurvescopeError: If the folder holds something else or a run with another configuration (the
            message shows the difference), or another process is working in it. Nothing has been
            changed then.
    """
    with io.claimed(path, config) as place:
        group = Group.of(group)
        group.agree(True)  # it is open
        io.remove_parts(place / "figures")
        yield OpenRun(place, group)
