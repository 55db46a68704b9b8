"""A worker: it takes the runs of a queue, one after the other, until nothing is left."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Literal

from curvescope.errors import CurvescopeError
from curvescope.io import Busy
from curvescope.sweeps.claims import Watch, claimed
from curvescope.sweeps.queue import Queue, Result, Task, now, since

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP = "stop-"
"""The file in ``queue`` that ends the workers of one start, ``stop-START``."""
_DEATHS = 3
"""Workers that may die in a run before it counts as failed."""
_LONGEST = 2.0
"""Seconds at most between two looks at runs that others work on."""


@dataclass(frozen=True)
class Ended:
    """How the work on a run ended; ``busy`` says that another process works in its folder."""

    ok: bool
    problem: str = ""
    busy: bool = False


Perform = Callable[[Task, Path], Ended]
"""Does the work of a run, whose run directory lies in the folder; says how it ended."""


def work(queue: Queue, perform: Perform, *, start: str = "") -> None:
    """Take the runs of a queue until all have ended, or wait for others that work on the rest.

    What ``perform`` raises is how the run has failed. Ctrl-C ends the worker, and the run is then
    free for another one.

    Args:
        queue: The runs.
        perform: Does the work of one.
        start: What started this worker; it ends when ``queue/stop-START`` is there, or the process
            that started it is gone.
    """
    over: set[str] = set()
    pause = 0.05
    with _guarded(queue, start):
        while len(over) < len(queue.tasks):
            performed = False
            for task in queue.tasks:
                if task.name not in over:
                    performed |= _look_at(task, queue, perform, over)
            pause = 0.05 if performed else min(2 * pause, _LONGEST)
            if len(over) < len(queue.tasks):
                time.sleep(pause)


def _look_at(task: Task, queue: Queue, perform: Perform, over: set[str]) -> bool:
    """Whether the run was free and was worked on; one that has ended goes into ``over``."""
    if _over(task, queue, over):
        return False
    needed = [other for other in queue.tasks if other.name in task.needs]
    results = [queue.result(other) for other in needed]
    if any(
        result is None and other.name not in over
        for result, other in zip(results, needed, strict=True)
    ):
        return False
    if not all(result is not None and result.state == "finished" for result in results):
        over.add(task.name)  # what it needs has failed
        return False
    place = queue.open(task)
    with claimed(place, queue.watch or Watch(), _interrupt) as mine:
        if not mine or _over(task, queue, over):
            return False
        ended = _performed(task, queue, perform, place)
    if ended:
        over.add(task.name)
    return ended


def _over(task: Task, queue: Queue, over: set[str]) -> bool:
    if queue.result(task) is not None:
        over.add(task.name)
    return task.name in over


def _performed(task: Task, queue: Queue, perform: Perform, place: Path) -> bool:
    """Whether the run has ended: the work, between two lines of the log."""
    worker, began = f"{socket.gethostname()}:{os.getpid()}", time.monotonic()
    if (deaths := queue.deaths(task)) >= _DEATHS:
        ended = Ended(False, f"{deaths} workers were killed in it, out of memory perhaps")
    else:
        queue.log(task, "began", worker)
        try:
            with _output(place / "output.txt"):
                ended = perform(task, queue.folder)
        except Busy:
            ended = Ended(False, busy=True)
        except CurvescopeError as error:
            ended = Ended(False, str(error))
        except Exception as error:
            ended = Ended(False, f"unexpected {type(error).__name__}: {error} (a bug)")
        except BaseException:
            queue.log(task, "stopped", worker)
            raise
    if ended.busy:
        queue.log(task, "stopped", worker)
        return False
    state: Literal["finished", "failed"] = "finished" if ended.ok else "failed"
    result = Result(state, ended.problem, since(began), worker, now())
    queue.end(task, result)
    queue.log(task, state, worker)
    return True


@contextmanager
def _output(file: Path) -> Iterator[None]:
    """What is printed in the block goes into the file, errors that nobody expected as well."""
    with (
        file.open("a", encoding="utf-8", buffering=1) as text,
        redirect_stdout(text),
        redirect_stderr(text),
    ):
        try:
            yield
        except Exception:
            traceback.print_exc()
            raise


@contextmanager
def _guarded(queue: Queue, start: str) -> Iterator[None]:
    """End the work when whoever started it says so or is gone."""
    parent, ended = os.getppid(), threading.Event()
    stop = queue.folder / "queue" / f"{STOP}{start}"

    def guard() -> None:
        while not ended.wait(0.5):
            if os.getppid() != parent or stop.exists():
                _interrupt()
                return

    if start:
        threading.Thread(target=guard, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _interrupt() -> None:
    """Ctrl-C for ourselves: the run keeps its state and the worker ends."""
    os.kill(os.getpid(), SIGINT)
