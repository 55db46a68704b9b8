"""``curvescope sweep`` and ``table``: real commands as the runs of a plan."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import curvescope as cs
from curvescope.cli.app import run
from curvescope.reports.runs import find_runs
from curvescope.sweeps import Queue, engines

TRAIN = """
[train]
network = "F-4"
data = "digits"
per-class = 5
epochs = 2
seed = {from = 0, to = 5}
"""
ANALYZE = """
[analyze]
run = "train"
checkpoint = [1, "final"]
steps = 4
probes = 4
figures = false
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def plan(text: str) -> str:
    Path("plan.toml").write_text(text)
    return "plan.toml"


def work_here(folder: str) -> int:
    """One worker in this process, without an engine."""
    (file,) = Path(folder, "queue").glob("*.json")
    return run(["worker", folder, "--plan", file.stem])


def events(folder: str) -> dict[str, list[str]]:
    (file,) = Path(folder, "queue").glob("*.json")
    queue = Queue(folder, file.stem)
    return {task.name: [e["event"] for e in queue.events(task)] for task in queue.tasks}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('network = "F4"\ndata = "digits"', r"'plan.toml', \[train\]: .*no network has this name"),
        ('network = "F-4"\ndata = "digit"', "a data set must be one of"),
        ('network = "F-4"\ndata = "digits"\nlr = -1', "--lr must be at least 0"),
        ('network = "F-4"\ndata = "digits"\nlr = true', "'lr' must be a text or a number"),
        ('network = "F-4"\ndata = "digits"\nepochs = "x"', "invalid value for '--epochs'"),
        ('network = "F-4"\ndata = "digits"\nout = "x"', "train has no setting 'out'"),
        ('network = "F-4"', "missing option '--data'"),
        ("network =", "is not TOML"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    lines: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    assert run(["sweep", plan(f"[train]\n{lines}\n")]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error), error
    assert error.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[study]\nstudy = "wu2020/random-two-layr"', "near it are wu2020/random-two-layer"),
        ('[study]\nstudy = "wu2020"', "study must name one study in each run"),
        ('[certify]\nmethod = "locl"\nrun = "x"', "method"),
        ('[analyze]\nrun = "x"\nsteps = 1', "--steps"),
        ("[analyze]\nsteps = 9", "needs --run DIR"),
    ],
)
def test_the_other_commands_check_their_settings_too(
    table: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", plan(table)]) == 2
    assert said in capsys.readouterr().err


def test_engines_that_are_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, extra in (("ray", "ray"), ("submitit", "slurm")):
        monkeypatch.setitem(sys.modules, name, None)
        engine = {"submitit": "slurm"}.get(name, name)
        assert run(["sweep", plan(TRAIN), "--engine", engine]) == 2
        assert f"pip install 'curvescope[{extra}]'" in capsys.readouterr().err
    assert run(["sweep", plan(TRAIN), "--engine", "slrum"]) == 2
    assert not Path("runs").exists()


def test_trainings_their_checkpoints_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """From a plan to a data frame, in this process."""
    text = TRAIN.replace("to = 5}", 'to = 0}\ncheckpoints = "1"') + ANALYZE
    bad = '[bad]\ncommand = "train"\nnetwork = "F-4"\ndata = "digits"\nlr = 1e30\nepochs = 1\n'
    late = '[late]\ncommand = "certify"\nrun = "bad"\n'
    file = plan(text + bad + late)
    assert run(["sweep", file, "--dry-run", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [each["state"] for each in runs] == ["waiting"] * 5
    assert not Path("runs").exists()
    cs.cli.sweeping.prepare(file).add()  # type: ignore[attr-defined]
    assert work_here("runs/plan") == 0
    assert run(["sweep", file]) == 1  # nothing is left to do, and something has failed
    said = capsys.readouterr().out
    assert "failed: bad/run: the training diverged in epoch 1" in said
    assert "not begun: late/run: what it needs has failed" in said
    assert "3 finished, 1 failed, 1 not begun in runs/plan" in said

    listed = {each.id: each for each in find_runs(Path("runs"))}
    assert len(listed) == 5
    assert listed["plan/train/seed=0"].page
    waits = listed["plan/late/run"]
    assert (waits.state, waits.kind, waits.page, waits.moving) == (
        "blocked", "certificate", False, False
    )  # fmt: skip

    frame = cs.table("runs/plan").set_index("run")
    assert len(frame) == 5
    first, last = (frame.loc[f"analyze/seed=0,checkpoint={at}"] for at in ("1", "final"))
    assert first["plan.seed"] == last["plan.seed"] == 0
    assert first["H.largest"] != last["H.largest"]
    assert first["H.trace"] == pytest.approx(first["H.mean"] * first["parameters"])
    training = frame.loc["train/seed=0"]
    assert last["train.error"] == pytest.approx(training["train.error"])
    assert (training["recipe.epochs"], training["network"]) == (2, "F-4")
    assert "diverged" in frame.loc["bad/run", "problem"]

    assert run(["table", "runs/plan", "--csv", "t.csv", "--parquet", "t.parquet"]) == 0
    with open("t.csv", encoding="utf-8") as lines:
        rows = {row["run"]: row for row in csv.DictReader(lines)}
    assert float(rows["analyze/seed=0,checkpoint=1"]["H.largest"]) == first["H.largest"]
    import pandas

    again = pandas.read_parquet("t.parquet").set_index("run")
    assert again.loc["analyze/seed=0,checkpoint=1", "H.largest"] == first["H.largest"]
    assert list(again.columns) == list(frame.columns)
    capsys.readouterr()
    assert run(["table", "runs/plan", "--columns", "run,H.tarce"]) == 2
    assert "there is no column 'H.tarce'" in capsys.readouterr().err


def test_ctrl_c_ends_all_workers_and_the_same_command_goes_on() -> None:
    """Two local workers, interrupted in the middle of long trainings, then shorter ones."""
    long = TRAIN.replace("epochs = 2", "epochs = 1000000").replace("to = 5", "to = 2")
    command = [sys.executable, "-m", "curvescope", "sweep", plan(long), "--jobs", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    until = time.monotonic() + 100
    while sum(f.stat().st_size > 0 for f in Path("runs").rglob("metrics.jsonl")) < 2:
        assert time.monotonic() < until, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; what is finished lies in runs/plan: the same command goes on" in error
    log = events("runs/plan")
    assert sorted(map(tuple, log.values())) == [(), ("began", "stopped"), ("began", "stopped")]
    assert not list(Path("runs/plan/queue").glob("stop-*"))
    assert not list(Path("runs/plan/queue").rglob("claim-*"))
    states = list(Path("runs/plan/train").glob("*/state.safetensors"))
    assert len(states) == 2  # where to go on


def emptied(engine: str, **options: Any) -> None:
    """Six runs by two workers; each is done once, with the numbers of a single process."""
    frame = cs.sweep(plan(TRAIN), "many", jobs=2, engine=engine, options=options)
    assert list(frame["state"]) == ["finished"] * 6
    assert set(map(tuple, events("many").values())) == {("began", "finished")}
    results = [json.loads(file.read_text()) for file in Path("many/queue").glob("*/*/result.json")]
    assert len(results) == 6
    alone = ["--per-class", "5", "--epochs", "2", "--seed", "3", "--out", "alone", "--quiet"]
    assert run(["train", "F-4", "--data", "digits", *alone]) == 0
    same = "weights/final.safetensors"
    weights = cs.load_network(Path("many/train/seed=3", same)).state_dict()
    for name, tensor in cs.load_network(Path("alone", same)).state_dict().items():
        assert tensor.equal(weights[name])


def test_a_real_ray_empties_a_sweep() -> None:
    emptied("ray", num_cpus=2)


def test_submitit_empties_a_sweep() -> None:
    emptied("submitit-local", timeout_min=5)


def test_slurm_is_refused_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(cs.CurvescopeError, match="engine='slurm' cannot be used here"):
        cs.sweep(plan(TRAIN), "many", engine="slurm")


def test_workers_that_end_at_once_are_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines.sys, "executable", "/bin/false")
    with pytest.raises(cs.CurvescopeError, match="workers end at once"):
        cs.sweep(plan(TRAIN), "many")
