"""The runs of a sweep on the disk: what they are, who works on them, how they ended.

========================= ======================================================================
``GROUP/RUN/``            the run directory, as its command makes it
``queue/PLAN.json``       the runs of a plan; a plan that grows gets another file
``queue/GROUP/RUN/``      what the sweep knows of the run:
``…/run.json``            what it is: its kind and settings, written first and never changed
``…/claim-000001``        who works on it now
``…/log.jsonl``           a line whenever it begins and ends, with the worker
``…/output.txt``          what it printed
``…/result.json``         how it ended; its presence says that it has
========================= ======================================================================
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.sweeps.claims import Watch, running

FOLDER = "queue"
State = Literal["finished", "failed", "running", "waiting", "blocked"]


@dataclass(frozen=True)
class Task:
    """One run of a sweep.

    Args:
        name: Its folder below that of the sweep, ``GROUP/RUN``.
        kind: What is done, such as ``"train"``.
        settings: What decides its numbers, as plain JSON.
        needs: The names of the runs that must have finished before.
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tasks:
    """The runs of a plan, each after those that it needs."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Result:
    """How a run ended.

    ``problem`` is the sentence about what went wrong; a run that finished may have one as well,
    such as a self-check that disagrees.
    """

    state: Literal["finished", "failed"]
    problem: str
    seconds: float
    worker: str
    finished: str  # UTC, ISO 8601


class Queue:
    """The runs of one plan in the folder of a sweep.

    Args:
        folder: The folder of the sweep.
        plan: The name of the plan's file in ``queue``, as :meth:`add` returns it.
    """

    def __init__(self, folder: io.PathLike, plan: str) -> None:
        self.folder, self.plan = Path(folder), plan
        self.tasks = io.load(self.folder / FOLDER / f"{plan}.json", Tasks).tasks
        self.watch: Watch | None = Watch()

    @classmethod
    def add(cls, folder: io.PathLike, tasks: Sequence[Task], *, adopt: bool = False) -> Queue:
        """Write a plan into a folder, which may hold it already, or other runs.

        Args:
            folder: The folder of the sweep.
            tasks: The runs.
            adopt: Whether the folders of runs may have been made before, without a sweep.

        Raises:
            CurvescopeError: If a run has the name of one that is there with other settings, or the
                folder cannot be written; nothing has been changed then.
        """
        place = Path(folder)
        for task in tasks:
            file = place / FOLDER / task.name / "run.json"
            if file.exists():
                there = io.load(file, Task)
                where = repr(str(place / task.name))
                io.refuse_difference(where, there, task, "a run", remedy=_ANOTHER)
            elif not adopt and (place / task.name).exists() and any((place / task.name).iterdir()):
                rule = "was not made by a sweep"
                raise CurvescopeError(repr(str(place / task.name)), rule, remedy=_ANOTHER)
        whole = Tasks(tuple(tasks))
        name = digest("sweep", io.encode(whole)[0])[:16]
        io.make_folder(place)
        io.make_folder(place / FOLDER)
        io.save(place / FOLDER / f"{name}.json", whole)
        return cls(place, name)

    def place(self, task: Task) -> Path:
        """The folder with what the sweep knows of a run."""
        return self.folder / FOLDER / task.name

    def open(self, task: Task) -> Path:
        """The same, made if need be, with what the run is."""
        place = self.place(task)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "run.json").exists():
            io.save(place / "run.json", task)
        return place

    def result(self, task: Task) -> Result | None:
        """How a run ended; None where it has not, or where its folder is gone."""
        file = self.place(task) / "result.json"
        if not file.exists():
            return None
        result = io.load(
            file, Result, owner=_owner(task), remedy=f"remove {str(self.place(task))!r}"
        )
        gone = result.state == "finished" and not (self.folder / task.name).exists()
        return None if gone else result

    def end(self, task: Task, result: Result) -> None:
        """Write down how a run ended."""
        io.save(self.place(task) / "result.json", result, owner=_owner(task))

    def retry(self, tasks: Iterable[Task]) -> None:
        """Forget that runs have failed."""
        for task in tasks:
            result = self.result(task)
            if result is not None and result.state == "failed":
                self.log(task, "retry", "")
                with suppress(FileNotFoundError):  # another process may retry it too
                    (self.place(task) / "result.json").unlink()

    def states(self) -> dict[str, tuple[State, Result | None]]:
        """The state of every run, and how it ended, by name."""
        found: dict[str, tuple[State, Result | None]] = {}
        for task in self.tasks:
            result = self.result(task)
            state: State = "waiting"
            if result is not None:
                state = result.state
            elif self.place(task).is_dir() and running(self.place(task), self.watch):
                state = "running"
            elif any(found[name][0] in ("failed", "blocked") for name in task.needs):
                state = "blocked"
            found[task.name] = (state, result)
        return found

    def log(self, task: Task, event: str, worker: str) -> None:
        """Add a line to the log of a run, which its claim keeps for one process at a time."""
        file = self.open(task) / "log.jsonl"
        torn = file.exists() and not file.read_bytes().endswith(b"\n")
        line = {"event": event, "at": now(), "worker": worker}
        with file.open("a", encoding="utf-8") as lines:
            lines.write("\n" * torn + json.dumps(line) + "\n")

    def events(self, task: Task) -> list[dict[str, str]]:
        """The log of a run; a line that a kill has torn is left out."""
        file = self.place(task) / "log.jsonl"
        events = []
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            with suppress(json.JSONDecodeError):
                events.append(json.loads(line))
        return events

    def deaths(self, task: Task) -> int:
        """How many workers have ended in this run without a word, since it was last retried."""
        deaths = 0
        for event in self.events(task):
            deaths = {"began": deaths + 1, "stopped": deaths - 1, "retry": 0}.get(
                event["event"], deaths
            )
        return deaths


_ANOTHER = "give another folder with `out`, or remove this one"


def _owner(task: Task) -> str:
    return digest("task", io.encode(task)[0])


def now() -> str:
    """The time, for a log."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def since(start: float) -> float:
    """Seconds since a moment of :func:`time.monotonic`."""
    return round(time.monotonic() - start, 3)


# Looking in from outside -----------------------------------------------------------------------


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return any((folder / FOLDER).glob("*.json"))


def tasks_in(folder: Path) -> dict[str, tuple[Task, State, Result | None]]:
    """All runs of the plans of a sweep by name, with their states; nothing is written."""
    found: dict[str, tuple[Task, State, Result | None]] = {}
    for file in sorted((folder / FOLDER).glob("*.json")):
        queue = Queue(folder, file.stem)
        queue.watch = None
        states = queue.states()
        found |= {task.name: (task, *states[task.name]) for task in queue.tasks}
    return found


def settings_with_needs(task: Task, tasks: Mapping[str, Task]) -> dict[str, Any]:
    """The settings of a run and of those that it needs; what both have is named by kind.

    >>> train = Task("train/seed=0", "train", {"seed": 0, "lr": 0.1})
    >>> analyze = Task("a/seed=0", "analyze", {"run": "train/seed=0", "seed": 5}, ("train/seed=0",))
    >>> settings_with_needs(analyze, {"train/seed=0": train})
    {'seed': 5, 'train.seed': 0, 'lr': 0.1}
    """
    own = {key: value for key, value in task.settings.items() if value not in task.needs}
    settings = dict(own)
    for name in task.needs:
        if name in tasks:
            needed = settings_with_needs(tasks[name], tasks)
            kind = tasks[name].kind
            settings |= {f"{kind}.{k}" if k in own else k: value for k, value in needed.items()}
    return settings
