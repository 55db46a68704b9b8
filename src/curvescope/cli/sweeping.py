"""A plan's runs from the first check to the last line: ``cs.sweep`` and the command's work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from curvescope import io, sweeps
from curvescope._checks import one_of
from curvescope.errors import CurvescopeError
from curvescope.sweeps import Queue, State, States, Task

Plan = str | os.PathLike[str] | Mapping[str, Any]


def sweep(
    plan: Plan,
    folder: io.PathLike | None = None,
    *,
    jobs: int = 1,
    engine: str = "local",
    threads: int | None = None,
    gpus: int | None = None,
    options: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    tell: Callable[[States], None] = lambda states: None,
) -> Any:
    """Do all runs of a plan with several workers, and gather their results as a table.

    A run that has finished is never computed again: not by the same call after an interruption, not
    by a plan that has grown, and not by other machines that work on the same folder. A run that
    fails leaves its sentence in the table and does not stop the others.

    Args:
        plan: A TOML file, or the tables that it would hold: ``{"train": {"network": "LeNet5",
            "data": "mnist-6k", "seed": [0, 1, 2]}}``. See the guide *many processes, many
            machines*.
        folder: Where the runs go; ``runs/NAME`` for a file ``NAME.toml``.
        jobs: The number of workers.
        engine: ``"local"`` processes, ``"ray"``, ``"slurm"`` by submitit, or ``"submitit-local"``.
        threads: Of each worker; a share of the cores if none, one on Ray and Slurm.
        gpus: Of each worker; a local one has its share of what is there.
        options: Those of ``ray.init``, or of submitit's executor.
        retry_failed: Whether runs that have failed before are tried again.
        tell: Called with the states of all runs while they are worked on.

    Returns:
        What :func:`curvescope.table` makes of the folder; ``state`` and ``problem`` say how each
        run ended.

    Raises:
        CurvescopeError: If something in the plan is refused; nothing has been started then.
    """
    from curvescope.reports.table import table

    made = prepare(plan, folder)
    place = sweeps.engine(engine, jobs, threads=threads, gpus=gpus, options=options)
    queue = made.add(retry_failed=retry_failed)
    sweeps.empty(queue, place, jobs, tell=tell)
    return table(queue.folder)


@dataclass(frozen=True)
class Prepared:
    """A plan that was checked, and its folder, in which nothing was written yet."""

    tasks: tuple[Task, ...]
    folder: Path

    def add(self, *, retry_failed: bool = False) -> Queue:
        """Write the plan into its folder."""
        queue = Queue.add(self.folder, self.tasks)
        if retry_failed:
            queue.retry(self.tasks)
        return queue


def prepare(plan: Plan, folder: io.PathLike | None = None) -> Prepared:
    """Read and check a plan."""
    from curvescope.cli.runs import commands

    if isinstance(plan, Mapping):
        if folder is None:
            rule = "needs `folder`, which a plan without a file has no name for"
            raise CurvescopeError("sweep", rule)
        return Prepared(sweeps.tasks_of("sweep", plan, commands()), Path(folder))
    file = Path(plan)
    where = repr(str(file))
    try:
        text = io.read_bytes(file).decode("utf-8")
    except UnicodeDecodeError:
        raise CurvescopeError(where, "is not a TOML file") from None
    place = Path("runs") / file.stem if folder is None else Path(folder)
    return Prepared(sweeps.tasks_of(where, io.parse_toml(text, where), commands()), place)


# What it will take ---------------------------------------------------------------------------


def states_of(made: Prepared) -> States:
    """The states of a plan's runs, whose folder may not be there yet."""
    there = sweeps.tasks_in(made.folder) if made.folder.is_dir() else {}
    nothing: tuple[State, None] = ("waiting", None)
    return {
        task.name: there[task.name][1:] if task.name in there else nothing for task in made.tasks
    }


def estimates(made: Prepared, states: States) -> dict[str, float]:
    """Seconds for runs that are to do, where they can be said: by runs like it, or by a forecast.

    A group's runs are thought to take as long as those of the group that have finished did; where
    none has, as long as the forecast of one whose network is there, and for a study what its file
    says.
    """
    groups: dict[str, list[Task]] = {}
    for task in made.tasks:
        groups.setdefault(task.name.partition("/")[0], []).append(task)
    found: dict[str, float] = {}
    for tasks in groups.values():
        to_do = [task for task in tasks if states[task.name][0] in ("waiting", "running")]
        done = [r.seconds for t in tasks if (r := states[t.name][1]) and r.state == "finished"]
        if not to_do:
            continue
        seconds = sum(done) / len(done) if done else _forecast(to_do[0], made, states)
        if seconds is not None:
            found |= {task.name: seconds for task in to_do}
    return found


def _forecast(task: Task, made: Prepared, states: States) -> float | None:
    """What the command itself says about a run, where it can before others have finished."""
    from curvescope.cli.app import performed
    from curvescope.cli.runs import COMMANDS, arguments

    ready = all(states[name][0] == "finished" for name in task.needs)
    if task.kind not in ("analyze", "certify") or not ready:
        return None
    settings = dict(task.settings)
    settings |= {k: str(made.folder / v) for k, v in settings.items() if v in task.needs}
    words = arguments(task.kind, settings, None)
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(StringIO()):
        done = performed([COMMANDS[task.kind], "--dry-run", "--json", *words])
    if done.code:
        return None
    seconds = json.loads(said.getvalue())["seconds"]
    return None if seconds is None else float(seconds)


def options_of(texts: list[str]) -> dict[str, Any]:
    """The options of an engine from ``KEY=VALUE``; numbers and true, false are taken as such.

    >>> options_of(["partition=gpu", "timeout_min=600"])
    {'partition': 'gpu', 'timeout_min': 600}
    """
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise CurvescopeError("--option", "must be KEY=VALUE", given=repr(text))
        words: dict[str, Any] = {"true": True, "false": False}
        options[key] = int(value) if value.isdecimal() else words.get(value, value)
    return options


def check_engine(name: str) -> None:
    """Refuse an engine that there is not."""
    one_of("sweep", "engine", name, sweeps.ENGINES)
