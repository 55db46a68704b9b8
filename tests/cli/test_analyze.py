"""``curvescope analyze``: from a run and from one's own files, stopped, continued, and misused."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from curvescope.cli.app import run
from curvescope.data import dataset
from curvescope.experiments import analyze as recipe
from curvescope.experiments.store import RunDirectory
from curvescope.networks import network
from curvescope.reports import page
from curvescope.training import Recipe, save_weights, train
from tests.experiments.examples import failed, rewritten

QUICK = ["--steps", "12", "--probes", "4", "--no-figures"]
OWN = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))

def load():
    g = torch.Generator().manual_seed(0)
    return torch.randn(30, 6, generator=g), torch.arange(30) % 3
"""


def one_sentence(stderr: str) -> bool:
    return stderr.startswith("curvescope: ") and stderr.count("\n") == 1


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's own file and weights, as the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_for_cli.py").write_text(OWN)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    save_weights(tmp_path / "own.safetensors", model)
    return tmp_path


OWN_ARGUMENTS = [
    *("analyze", "--model", "own_for_cli.py:build", "--weights", "own.safetensors"),
    *("--data", "own_for_cli.py:load", "--out", "out", *QUICK),
]


def test_a_training_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = dataset("digits", per_class=3)
    recipe = Recipe(seed=0, epochs=2, lr=0.1)
    train(network("F-4", data.input_shape, 10), data, recipe, folder=tmp_path / "run")
    assert run(["analyze", "--run", str(tmp_path / "run"), "--quiet", *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for words in ("F-4 (310 parameters) on digits", "largest eigenvalue", "self-checks:", "exact"):
        assert words in captured.out
    place = tmp_path / "run" / "analysis"
    assert f"report: {place / 'report.html'}" in captured.out
    assert RunDirectory(place).complete
    assert RunDirectory(place).config.data.samples == 30


def test_ones_own_model_weights_and_data(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*OWN_ARGUMENTS, "--json", "--layers", "1", "--no-classes"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = json.loads(captured.out)
    assert shown["config"]["model"]["name"] == "own_for_cli.py:build"
    assert "layer-1" in shown["stages"]
    assert not {"layer-3", "classes"} & set(shown["stages"])
    assert all(check["passed"] for check in shown["checks"])
    assert Path(shown["report"]).is_file()


BROKEN = """
import torch
from torch import nn
from torch.autograd.function import once_differentiable

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0] ** 2

class Once(nn.Linear):
    def forward(self, x):
        return Cube.apply(super().forward(x))

class Absent(nn.Linear):
    def forward(self, x):
        return self.nothing(x)

class Asserts(nn.Linear):
    def forward(self, x):
        assert x.shape[1] == 7, "seven, please"

class Undefined(nn.Linear):
    def forward(self, x):
        return super().forward(x) * float("nan")

def once(): return Once(6, 3)
def absent(): return Absent(6, 3)
def asserts(): return Asserts(6, 3)
def undefined(): return Undefined(6, 3)
def build(): return nn.Linear(6, 3)

def load(split):
    X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    return X, torch.arange(30) % (3 if split == "train" else 4)
"""


@pytest.mark.parametrize(
    ("model", "data", "match"),
    [
        ("once", "own_for_cli:load", "cannot be differentiated twice: .* used in the graph.$"),
        ("absent", "own_for_cli:load", "refused batch 0 .*AttributeError: .*nothing"),
        ("asserts", "own_for_cli:load", "refused batch 0 .*AssertionError: seven, please"),
        ("undefined", "own_for_cli:load", "output is NaN or infinite"),
        ("build", "broken_for_cli:load", "test data: .*3"),
    ],
)
def test_what_cannot_be_analyzed_leaves_nothing(
    mine: Path, capsys: pytest.CaptureFixture[str], model: str, data: str, match: str
) -> None:
    (mine / "broken_for_cli.py").write_text(BROKEN)
    arguments = ["--model", f"broken_for_cli:{model}", "--data", data, "--out", "out"]
    assert run(["analyze", *arguments, *QUICK]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(match, said), said
    assert not (mine / "out").exists()


def test_the_american_spelling_and_a_second_run_that_reads(mine: Path, monkeypatch) -> None:
    assert run([*OWN_ARGUMENTS, "--quiet"]) == 0
    before = {p: p.stat().st_mtime_ns for p in (mine / "out" / "stages").rglob("*.json")}
    assert run(["analyze", *OWN_ARGUMENTS[1:], "--quiet"]) == 0
    assert {p: p.stat().st_mtime_ns for p in (mine / "out" / "stages").rglob("*.json")} == before


def test_a_second_run_draws_nothing_again(mine: Path, monkeypatch) -> None:
    arguments = [*OWN_ARGUMENTS, "--quiet", "--layers", "1", "--no-classes"]
    assert run(arguments) == 0
    original, written = page.write_report, []

    def counted(path: Path, *, figures: bool, extra: list) -> Path:
        written.append(figures)
        if figures:
            (path / "figures").mkdir()  # drawing them takes a while
        return original(path, figures=False)

    monkeypatch.setattr(page, "write_report", counted)
    assert run(arguments) == 0
    assert written == []
    (mine / "out" / "report.html").unlink()
    assert run(arguments) == 0
    assert written == [False]
    stage = mine / "out" / "stages" / "overview" / "result.json"
    stage.write_text(stage.read_text() + " ")  # other results
    assert run(arguments) == 0
    assert written == [False] * 2
    arguments.remove("--no-figures")
    assert run(arguments) == 0
    assert run(arguments) == 0
    assert written == [False, False, True]
    (mine / "out" / "figures").rmdir()
    assert run(arguments) == 0
    assert written == [False, False, True, True]


def test_arrays_and_a_sub_sample(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(50, 6, generator=g).numpy(), np.arange(50) % 3
    np.savez(mine / "arrays.npz", X=X, y=y, X_test=X[:5], y_test=y[:5])
    arguments = [*OWN_ARGUMENTS, "--json", "--samples", "20"]
    arguments[arguments.index("own_for_cli.py:load")] = "arrays.npz"
    assert run(arguments) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["data"]["samples"], config["test"]["samples"]) == (20, 5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "needs --run DIR, or --model and --data"),
        (["--model", "own_for_cli:build", "--data", "digits"], "--out must name a folder"),
        (["--run", "none"], "is not the folder of a training run"),
        (["--run", "x", "--model", "own_for_cli:build"], "give either --run or --model"),
        (["--out", "o", "--model", "own_for_cli:build"], "needs --run DIR, or --model and --data"),
        (["--out", "o", "--model", "F-4", "--data", "digits"], "needs --weights"),
        (["--out", "o", "--model", "nothing_here:b", "--data", "digits"], "cannot be imported"),
        (["--out", "o", "--model", "own_for_cli:build", "--data", "no-set"], "no-set"),
        (["--out", "o", "--model", "own_for_cli:build", "--data", "x.npz"], "no such file"),
        (["--samples", "none"], "--samples"),
        (["--sedd", "1"], "--sedd"),
    ],
)
def test_a_wrong_argument_is_one_sentence(mine: Path, capsys, arguments, words: str) -> None:
    before = sorted(mine.rglob("*"))
    assert run(["analyze", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert one_sentence(captured.err)
    assert words in captured.err
    after = [path for path in sorted(mine.rglob("*")) if "__pycache__" not in path.parts]
    assert after == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--weights", "own.pt"], "only safetensors files are read"),
        (["--weights", "none.safetensors"], "cannot be read"),
        (["--layers", "fc9"], "'fc9' is no layer of a known kind"),
        (["--loss", "hinge"], "--loss must be one of"),
        (["--device", "gpu7"], "--device must be auto, cpu, cuda"),
        (["--data", "digits"], "the model refused batch 0"),
    ],
)
def test_what_does_not_fit_changes_nothing(mine: Path, capsys, changes, words: str) -> None:
    assert run([*OWN_ARGUMENTS, *changes]) == 2
    captured = capsys.readouterr()
    assert one_sentence(captured.err)
    assert words in captured.err
    assert not (mine / "out").exists()


def test_another_configuration_is_refused_with_the_difference(mine: Path, capsys) -> None:
    assert run([*OWN_ARGUMENTS, "--quiet"]) == 0
    capsys.readouterr()
    assert run([*OWN_ARGUMENTS, "--quiet", "--seed", "3"]) == 2
    error = capsys.readouterr().err
    assert one_sentence(error)
    assert "seed is 0 there and 3 here" in error


def test_a_full_disk_is_one_sentence(mine: Path, capsys, monkeypatch) -> None:
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert run([*OWN_ARGUMENTS, "--quiet"]) == 2
    error = capsys.readouterr().err
    assert one_sentence(error)
    assert "No space left on device" in error
    assert not list(mine.rglob("*.part"))
    assert not list(mine.rglob("result.json"))
    assert run([*OWN_ARGUMENTS, "--quiet"]) == 0


def test_a_folder_without_permission_is_one_sentence(mine: Path, capsys) -> None:
    (mine / "file").write_text("in the way")
    arguments = [*OWN_ARGUMENTS, "--quiet"]
    arguments[arguments.index("out")] = "file/out"
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert one_sentence(error)
    assert "cannot be used" in error


def test_a_check_that_fails_is_shown_and_is_code_1(mine: Path, capsys, monkeypatch) -> None:
    assert run([*OWN_ARGUMENTS, "--quiet"]) == 0
    rewritten(mine / "out", "summary", failed)
    capsys.readouterr()
    assert run([*OWN_ARGUMENTS, "--quiet"]) == 1
    assert "disagree: tr H by itself" in capsys.readouterr().out


def test_debug_lets_the_traceback_through(mine: Path, monkeypatch) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(recipe, "analyze", fail)
    with pytest.raises(RuntimeError, match="boom"):
        run([*OWN_ARGUMENTS, "--quiet", "--debug"])


def test_ctrl_c_and_on_again(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real process, stopped by a real signal, leaves whole stages; the same command goes on."""
    arguments = [*OWN_ARGUMENTS, "--quiet", "--steps", "30", "--probes", "64"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from curvescope.cli import main; main()", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=mine,
    )
    deadline = time.monotonic() + 60
    while not (mine / "out" / "stages" / "overview" / "result.json").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "the same command goes on from there" in stderr
    assert not list(mine.rglob("*.part"))
    assert not RunDirectory(mine / "out").complete
    assert run(arguments) == 0
    assert RunDirectory(mine / "out").complete
