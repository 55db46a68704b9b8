"""Runs without a network: a value is written, with so many steps on the way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from curvescope.sweeps import Ended, Queue, Task, work


def tasks(count: int, **settings: object) -> tuple[Task, ...]:
    return tuple(Task(f"toy/seed={i}", "toy", {"seed": i, **settings}) for i in range(count))


def perform(task: Task, folder: Path) -> Ended:
    """Count to the end, keeping every step; what is there is not counted again."""
    place = folder / task.name
    place.mkdir(parents=True, exist_ok=True)
    if task.settings.get("fails"):
        return Ended(False, "it fails")
    file, steps = place / "steps.txt", int(task.settings.get("steps", 1))
    done = file.read_text().count("\n") if file.exists() else 0
    with file.open("a") as lines:
        for step in range(done, steps):
            lines.write(f"{step}\n")
            lines.flush()
            time.sleep(float(task.settings.get("pause", 0)))
    (place / "value.json").write_text(json.dumps({"value": task.settings["seed"]}))
    print(f"worked on {task.name}")
    return Ended(True)


def worker(folder: str, plan: str) -> None:
    """A process that takes runs until none is left."""
    os.setsid()
    work(Queue(folder, plan), perform)


def events(queue: Queue, names: Sequence[Task]) -> dict[str, list[str]]:
    return {task.name: [line["event"] for line in queue.events(task)] for task in names}
