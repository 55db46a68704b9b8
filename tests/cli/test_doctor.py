"""``curvescope doctor``, and the estimates that ``analyze`` and ``certify`` begin with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from curvescope import io
from curvescope.cli.app import run
from curvescope.experiments.doctor import Diagnosis

CODE = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def random():
    return nn.Sequential(nn.Linear(6, 3), Noise())


def load():
    X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    return X, torch.arange(30) % 3
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("doctored.py").write_text(CODE)


MINE = ["--model", "doctored.py:build", "--data", "doctored.py:load"]


def test_tables_and_at_the_end_the_command(capsys) -> None:
    assert run(["doctor", *MINE, "--batch-size", "10", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for words in ("ok  determinism", "Linear", "H and G", "H·v, kept tape", "certificate"):
        assert words in captured.out
    last = captured.out.rstrip().splitlines()[-1]
    assert last == (
        "curvescope analyze --model doctored.py:build --data doctored.py:load --batch-size 10 "
        "--out runs/build"
    )
    assert sorted(path.name for path in Path().iterdir()) == ["__pycache__", "doctored.py"] or (
        [path.name for path in Path().iterdir()] == ["doctored.py"]
    )


def test_json_and_a_file(capsys) -> None:
    assert run(["doctor", *MINE, "--json", "--out", "said.json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = json.loads(captured.out)
    assert shown["ok"] is True
    assert shown["refusal"] == ""
    assert [m["name"] for m in shown["modules"]] == ["0", "1", "2"]
    assert {f["what"] for f in shown["forecasts"]} == {"density", "analysis", "certificate"}
    assert io.load(Path("said.json"), Diagnosis).advice == shown["advice"]


def test_a_random_model_is_refused(capsys) -> None:
    arguments = ["--model", "doctored.py:random", "--data", "doctored.py:load"]
    assert run(["doctor", *arguments, "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "no  determinism" in out
    assert "It cannot be analyzed: " in out.rstrip().splitlines()[-1]
    assert run(["doctor", *arguments, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is False
    assert "random" in shown["refusal"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs --run DIR, or --model and --data"),
        (["--run", "r", "--model", "doctored.py:build"], "--run brings its own network"),
        (["--model", "doctored.py", "--data", "mnist-6k"], "must name a function of the file"),
    ],
)
def test_mistakes(capsys, arguments: list[str], message: str) -> None:
    assert run(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_analysis_says_what_it_will_take_before_it_starts(capsys) -> None:
    command = ["analyze", *MINE, "--out", "here", "--steps", "6", "--probes", "4", "--no-figures"]
    assert run([*command, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("analysis: about ")
    assert "spectrum H" in captured.out
    assert captured.err == ""
    assert not Path("here").exists()
    assert run([*command, "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["seconds"] == pytest.approx(sum(seconds for _, seconds in shown["steps"]))
    assert not Path("here").exists()
    assert run(command) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("analysis: about ")
    assert "analysis: about" not in captured.out
    assert run(command) == 0  # what is finished takes nothing
    assert "analysis: about" not in capsys.readouterr().err


def test_a_certificate_says_what_it_will_take(capsys) -> None:
    train = ["train", "T-5", "--data", "mnist-6k-2", "--per-class", "60", "--epochs", "1"]
    assert run([*train, "--loss", "binary_logistic", "--out", "run", "--quiet"]) == 0
    capsys.readouterr()
    assert run(["certify", "run", "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("certificate: about ")
    for part in ("optimizing", "bases", "draws"):
        assert part in captured.out
    assert not Path("run/certificate.json").exists()
    assert run(["certify", "run", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["what"] == "certificate"
