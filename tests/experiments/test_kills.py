"""A kill at any file operation: the same command goes on, to the same numbers, and tidies up."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from curvescope.cli import app
from curvescope.data import dataset
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.experiments.demo import demonstrate
from curvescope.experiments.store import RunDirectory
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.studies import catalog
from curvescope.studies.outcome import load as load_outcome
from curvescope.studies.run import Result, Run
from curvescope.training import Recipe, train
from tests.experiments.examples import TINY
from tests.fuzz.workspace import TOY
from tests.kills import killed_after, left_behind, operations_of

ALL = bool(os.environ.get("CURVESCOPE_ALL_KILLS"))
SMALL = Settings(
    steps=6, probes=4, trace_probes=8, outliers=3, layer_pairs=4, exact_rows=0, class_rows=100
)


def trained(folder: Path) -> Any:
    data = dataset("digits", per_class=3)
    model = network("F-3", data.input_shape, 10, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(seed=0, epochs=3, lr=0.1, checkpoints=(2,))
    result = train(model, data, recipe, test=data, folder=folder / "run", resume=True)
    losses = [(epoch.loss, epoch.test_loss) for epoch in result.history]
    return losses, {name: value.tolist() for name, value in model.state_dict().items()}


def analyzed(folder: Path) -> Any:
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(24, 4, generator=g, dtype=torch.float64), torch.arange(24) % 3
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    for p in model.parameters():
        nn.init.uniform_(p, -1.0, 1.0, generator=g)
    run = analyze(Problem(model, (X, y)), folder / "run", seed=0, settings=SMALL)
    return results(run)


def results(run: RunDirectory) -> Any:
    """Everything that was measured; arrays by their checksums, so to the bit."""
    stages = {name: run.stage(name, Any) for name in run.stages}
    return {name: (stage.result, stage.checks) for name, stage in stages.items()}


def demonstrated(folder: Path) -> Any:
    found = demonstrate(folder / "demo", seed=0, plan=TINY)
    return [results(run) for run in found.runs], found.certificate.bound


def toy(run: Run) -> Result:
    part = run.once("part", lambda: {"x": torch.arange(3.0)})
    return Result({"sum": float(part["x"].sum())})


def reproduced(folder: Path) -> Any:
    arguments = ["reproduce", "toys/toy", "--out", str(folder / "out"), "--quiet"]
    assert app.run(arguments) == 0
    outcome = load_outcome(folder / "out", "toys/toy")
    assert outcome is not None
    return outcome.values


@pytest.fixture
def only_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "studies", lambda: (replace(TOY, run=toy),))


@pytest.mark.usefixtures("only_toys")
@pytest.mark.parametrize(
    ("work", "tried"),
    [(trained, 1000), (analyzed, 6), (reproduced, 1000), (demonstrated, 1)],
    ids=["train", "analyze", "reproduce", "demo"],
)
def test_any_file_operation_may_be_the_last(
    tmp_path: Path, work: Callable[[Path], Any], tried: int
) -> None:
    """Every operation of the short commands; of the long ones the first few and a sample."""
    for name in ("counted", "whole"):
        (tmp_path / name).mkdir()
    count = operations_of(tmp_path / "counted", work)
    wanted = work(tmp_path / "whole")
    points: Sequence[int] = range(count)
    if not ALL and count > tried:
        points = sorted({*range(min(tried, 4)), *random.Random(0).sample(points, tried)})
    for point in points:
        folder = tmp_path / str(point)
        folder.mkdir()
        with killed_after(folder, point):
            work(folder)
        assert work(folder) == wanted, point
        assert left_behind(folder) == [], point


SCRIPT = """
import sys
from pathlib import Path
from tests.experiments.test_kills import analyzed
analyzed(Path(sys.argv[1]))
"""


def test_a_real_kill_of_an_analysis_leaves_the_same_numbers_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    wanted = analyzed(tmp_path / "whole")
    source = random.Random(2)
    for trial in range(40 if ALL else 1):
        folder = tmp_path / str(trial)
        folder.mkdir()
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])
        deadline = time.monotonic() + 60
        while not (folder / "run" / "config.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(source.random() * 1.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert analyzed(folder) == wanted
        assert left_behind(folder) == []
