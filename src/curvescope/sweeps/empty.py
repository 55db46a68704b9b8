"""Workers for a queue: started, watched, and ended together."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.sweeps.engines import Engine
from curvescope.sweeps.queue import FOLDER, Queue, Result, State
from curvescope.sweeps.worker import STOP

States = Mapping[str, tuple[State, Result | None]]
LOGS = "workers"
_LOOK = 0.5
"""Seconds between two looks at the queue."""
_FRUITLESS = 3
"""Times in a row that all workers may be gone without a run that has ended."""


def empty(
    queue: Queue, engine: Engine, jobs: int, *, tell: Callable[[States], None] = lambda states: None
) -> States:
    """Have ``jobs`` workers take the runs of a queue until all have ended.

    Workers that die are replaced. On ctrl-C all of them keep their state and end.

    Args:
        queue: The runs.
        engine: What starts workers.
        jobs: How many of them; no more than there are runs.
        tell: Called with the states of all runs, twice a second.

    Returns:
        How all runs ended.

    Raises:
        CurvescopeError: If workers cannot be started, or end at once.
    """
    start = uuid.uuid4().hex[:12]
    stop = queue.folder / FOLDER / f"{STOP}{start}"
    logs = io.make_folder(queue.folder / FOLDER / LOGS)
    command = ["worker", str(queue.folder.resolve()), "--plan", queue.plan, "--start", start]
    states = queue.states()
    tell(states)
    gone, ended = 0, -1
    try:
        while (to_do := len(queue.tasks) - _ended(states)) > 0:
            left = engine.left()
            if not left:
                gone = 0 if _ended(states) > ended else gone + 1
                ended = _ended(states)
                if gone == _FRUITLESS:
                    raise CurvescopeError("sweep", f"workers end at once; {_last_words(logs)}")
            if left < min(jobs, to_do):
                engine.start([command] * (min(jobs, to_do) - left), logs)
            time.sleep(_LOOK)
            states = queue.states()
            tell(states)
        while engine.left():
            time.sleep(0.05)
    except BaseException:
        stop.touch()
        try:
            engine.stop()
        finally:
            stop.unlink(missing_ok=True)
        raise
    for log in logs.glob("*.txt"):
        if not log.stat().st_size:
            log.unlink()
    tell(states)
    return states


def _ended(states: States) -> int:
    return sum(state in ("finished", "failed", "blocked") for state, _ in states.values())


def _last_words(logs: Path) -> str:
    """The last line that a worker printed."""
    files = sorted(logs.glob("*.txt"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            return f"the last one said: {lines[-1]}"
    return f"they said nothing in {str(logs)!r}"
