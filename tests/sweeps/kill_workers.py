"""Kill -9 of one of three workers of a real sweep, at random moments; then the same command again.

``python tests/sweeps/kill_workers.py FOLDER --moments 20`` says what was killed, what the log says
of every run, and whether all numbers and weights are those of an undisturbed sweep. A small form of
it, on runs without a network, is in ``test_worker.py``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from curvescope.reports.table import gather
from curvescope.sweeps import Queue

PLAN = """
[train]
network = "F-8"
data = "digits"
epochs = 300
seed = {from = 0, to = 23}

[analyze]
run = "train"
samples = 20
steps = 4
probes = 4
no-classes = true
figures = false
"""


def command(plan: Path, out: Path, *options: str) -> list[str]:
    words = ["sweep", str(plan), "--out", str(out), "--jobs", "3", *options]
    return [sys.executable, "-m", "curvescope", *words]


def holders(folder: Path) -> list[int]:
    """The processes that hold a run at this moment."""
    found = []
    for claim in (folder / "queue").rglob("claim-*"):
        with suppress(OSError, ValueError):  # given back at this moment
            process = int(claim.read_text().split(":")[-1])
            os.kill(process, 0)
            found.append(process)
    return found


def numbers(folder: Path) -> dict[str, dict[str, object]]:
    table = gather(folder)
    rows = [table.row(i) for i in range(len(table))]
    return {row["run"]: {k: v for k, v in row.items() if k != "seconds"} for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--moments", type=int, default=20)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True)
    plan, chance = asked.folder / "plan.toml", random.Random(0)
    plan.write_text(PLAN)
    killed = 0
    disturbed, calm = asked.folder / "disturbed", asked.folder / "calm"
    process = subprocess.Popen(command(plan, disturbed))
    while process.poll() is None and killed < asked.moments:
        time.sleep(chance.uniform(0, 2))
        for victim in holders(disturbed)[: chance.choice([1, 1, 2])][-1:]:
            with suppress(OSError):
                os.kill(victim, signal.SIGKILL)
                killed += 1
    process.wait()
    subprocess.run(command(plan, disturbed, "--retry-failed"), check=False)
    subprocess.run(command(plan, calm), check=False)
    (file,) = (disturbed / "queue").glob("*.json")
    queue = Queue(disturbed, file.stem)
    logs = [[event["event"] for event in queue.events(task)] for task in queue.tasks]
    twice = [log for log in logs if log.count("finished") != 1 or log[-1] != "finished"]
    begun = Counter(log.count("began") for log in logs)
    same = numbers(disturbed) == numbers(calm)
    weights = all(
        file.read_bytes() == (calm / file.relative_to(disturbed)).read_bytes()
        for file in disturbed.rglob("final.safetensors")
    )
    print(f"killed {killed} workers; {len(logs)} runs; begun so often: {dict(begun)}")
    print(f"runs that did not finish exactly once, at the end: {len(twice)}")
    print(f"numbers the same: {same}; weights the same to the bit: {weights}")
    return 0 if same and weights and not twice else 1


if __name__ == "__main__":
    sys.exit(main())
