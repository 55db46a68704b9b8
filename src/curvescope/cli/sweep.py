"""``curvescope sweep``: the runs of a plan by many workers, and one table of their progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from curvescope.cli.interrupts import check, stoppable
from curvescope.cli.options import AsJson, Debug, Quiet, check_folder

if TYPE_CHECKING:
    from curvescope.cli.sweeping import Prepared
    from curvescope.sweeps import Queue, Result, State, States

_COLORS = {"finished": "green", "failed": "red", "running": "cyan", "waiting": "", "blocked": "red"}


def sweep(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The runs, as tables.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder; runs/PLAN if none."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Workers.")] = 1,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="local, ray, slurm or submitit-local.")
    ] = "local",
    threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of each worker; a share of the cores if none."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Of each worker; a share of what is there if none."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="For ray.init or Slurm: partition=gpu; any number."),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what has failed before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is finished and what is to do.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Do the runs of a plan with several workers, here or on a cluster.

    What is finished is not computed again, and the same command goes on after
    ctrl-C. Any number of machines can work on one folder at the same time. The
    exit code is 1 if a run has failed. A plan is a TOML file:

    \b
    [train]
    network = ["LeNet5", "F-200^2"]
    data = "mnist-6k"
    seed = {from = 0, to = 4}
    [analyze]
    run = "train"
    samples = 1000

    \b
    curvescope sweep plan.toml --dry-run
    curvescope sweep plan.toml --jobs 4
    curvescope sweep plan.toml --jobs 16 --engine slurm \\
        --option partition=gpu --option timeout_min=600 --gpus 1
    curvescope table runs/plan --csv results.csv
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope import sweeps
    from curvescope.cli import sweeping
    from curvescope.experiments.load import importable

    sweeping.check_engine(engine)
    options = sweeping.options_of(option or [])
    with importable(Path.cwd()):
        made = sweeping.prepare(plan, out)
        states = sweeping.states_of(made)
        if dry_run:
            _show_plan(made, states, as_json=as_json)
            return
    check_folder("--out", made.folder)
    workers = sweeps.engine(engine, jobs, threads=threads, gpus=gpus, options=options)
    queue = made.add(retry_failed=retry_failed)
    advice = f"what is finished lies in {made.folder}: the same command goes on from there"
    console = Console(stderr=True, quiet=quiet or as_json, highlight=False)
    with stoppable(advice, made.folder), _progress(queue, console) as tell:
        states = sweeps.empty(queue, workers, jobs, tell=tell)
    if as_json:
        typer.echo(json.dumps(_summary(made, states), indent=2))
    else:
        _show_end(made, states)
    if any(state in ("failed", "blocked") for state, _ in states.values()) or _remarks(states):
        raise typer.Exit(1)


def worker(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    plan: Annotated[str, typer.Option(metavar="NAME")],
    start: Annotated[str, typer.Option(metavar="ID")] = "",
) -> None:
    """One worker of a sweep; engines start it."""
    import sys

    from curvescope.cli.runs import interruptible, perform
    from curvescope.sweeps import Queue, work

    sys.path.insert(0, str(Path.cwd()))  # code of users is found where the sweep was started
    with interruptible():
        work(Queue(folder, plan), perform, start=start)


# Before and after ----------------------------------------------------------------------------


def _show_plan(made: Prepared, states: States, *, as_json: bool) -> None:
    """What is finished, what is to do, and what it may take."""
    from curvescope.cli.sweeping import estimates
    from curvescope.experiments.doctor.records import duration

    seconds = estimates(made, states)
    if as_json:
        runs = [
            {**asdict(task), "state": states[task.name][0], "seconds": seconds.get(task.name)}
            for task in made.tasks
        ]
        typer.echo(json.dumps({"folder": str(made.folder), "runs": runs}, indent=2))
        return
    console = Console(highlight=False)
    table = Table()
    for name in ("run", "state", "takes about"):
        table.add_column(name, overflow="fold")
    for task in made.tasks:
        state = states[task.name][0]
        takes = duration(seconds[task.name]) if task.name in seconds else ""
        table.add_row(task.name, "to do" if state == "waiting" else state, takes)
    console.print(table)
    to_do = [task for task in made.tasks if states[task.name][0] in ("waiting", "running")]
    line = f"{_counts(states)} in {made.folder}"
    if to_do and seconds:
        known = [seconds[task.name] for task in to_do if task.name in seconds]
        line += f"; about {duration(sum(known))} of work for {len(known)} of them"
    console.print(line, markup=False, soft_wrap=True)


def _summary(made: Prepared, states: States) -> dict[str, Any]:
    return {
        "folder": str(made.folder),
        "runs": [
            {"run": name, "state": state, **_json_of(result)}
            for name, (state, result) in states.items()
        ],
    }


def _json_of(result: Result | None) -> dict[str, Any]:
    return {} if result is None else {"problem": result.problem, "seconds": result.seconds}


def _show_end(made: Prepared, states: States) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for name, (state, result) in states.items():
        if result is not None and result.problem:
            console.print(f"[red]{state}:[/red]", end=" ")
            console.print(f"{name}: {result.problem}", markup=False)
        elif state == "blocked":
            console.print(f"not begun: {name}: what it needs has failed", markup=False)
    console.print(f"{_counts(states)} in {made.folder}", markup=False)
    if any(state == "failed" for state, _ in states.values()):
        console.print("--retry-failed tries again; queue/RUN/output.txt is what a run printed")
    console.print(f"results: curvescope table {made.folder}", markup=False)


def _remarks(states: States) -> bool:
    return any(result is not None and result.problem for _, result in states.values())


def _counts(states: States) -> str:
    """How many runs there are of each state."""
    kinds = [state for state, _ in states.values()]
    words = {"waiting": "to do", "blocked": "not begun"}
    return ", ".join(
        f"{kinds.count(state)} {words.get(state, state)}"
        for state in ("finished", "failed", "blocked", "running", "waiting")
        if state in kinds
    )


# While it works ------------------------------------------------------------------------------


@contextmanager
def _progress(queue: Queue, console: Console) -> Iterator[Callable[[States], None]]:
    """One table of all runs in a terminal; elsewhere a line for each that begins or ends."""
    if console.is_terminal and not console.quiet:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            began = time.monotonic()

            def draw(states: States) -> None:
                check()
                live.update(_picture(queue, states, console.height, began), refresh=True)

            yield draw
        return
    before: dict[str, str] = {}

    def lines(states: States) -> None:
        check()
        for name, (state, result) in states.items():
            if before.get(name, "waiting") != state:
                took = "" if result is None else f" in {result.seconds:.1f} s"
                problem = f": {result.problem}" if result is not None and result.problem else ""
                console.print(f"{state} {name}{took}{problem}", markup=False, soft_wrap=True)
            before[name] = state

    yield lines


def _picture(queue: Queue, states: States, height: int, began: float) -> Table:
    """What runs, what ended last, what comes next: as many lines as there is room for."""
    table = Table(title=f"{_counts(states)}, {time.monotonic() - began:.0f} s", expand=True)
    for column in ("run", "state", "how far"):
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    for name in _most_interesting(states, max(height - 6, 3)):
        state, result = states[name]
        far = _how_far(queue, name) if state == "running" else _end_of(result)
        table.add_row(name, state, far, style=_COLORS[state])
    return table


def _most_interesting(states: States, room: int) -> list[str]:
    """The names of as many runs, in their order: running, failed, next, and finished last."""
    order: Sequence[State] = ("running", "failed", "blocked", "waiting", "finished")
    names = [name for state in order for name in states if states[name][0] == state]
    chosen = set(names[:room])
    return [name for name in states if name in chosen]


def _end_of(result: Result | None) -> str:
    if result is None:
        return ""
    return result.problem or f"{result.seconds:.1f} s"


def _how_far(queue: Queue, name: str) -> str:
    """Epochs of a training, stages of an analysis; from the run's own folder."""
    from curvescope.reports.runs import how_far

    return how_far(queue.folder / name)
