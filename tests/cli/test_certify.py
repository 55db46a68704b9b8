"""``curvescope certify``: from a run, from one's own files, verified, stopped and misused."""

import json
import sys
from pathlib import Path

import pytest
import torch
import typer
from torch import nn

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.certificates import Certificate
from curvescope.cli import app as application
from curvescope.cli import certify as command
from curvescope.data import dataset
from curvescope.networks.names import network
from curvescope.training import Recipe, save_weights, train

app = typer.Typer()
app.command()(command.certify)

QUICK = ["--epochs", "5", "--slack", "0.05", "--quiet", "--device", "cpu"]
OWN = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))

def load():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    return 3 * torch.eye(5)[y] + torch.randn(90, 5, generator=g), y
"""


def run(*arguments: object) -> int:
    """The command as the application would run it, with its exit code."""
    main = typer.main.get_command(app)
    code = main.main([str(a) for a in arguments], prog_name="certify", standalone_mode=False)
    return code if isinstance(code, int) else 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training run on a part of the embedded digits, 0–4 against 5–9."""
    place = tmp_path_factory.mktemp("runs") / "binary"
    data = dataset("mnist-6k-2", per_class=200)
    model = network("T-10", (1, 28, 28), 1, generator=torch.Generator().manual_seed(0))
    train(model, data, Recipe(seed=0, epochs=5, lr=0.1, loss="binary_logistic"), folder=place)
    return place


def test_a_run_is_certified_and_the_file_verified(folder: Path, capsys) -> None:
    assert run(folder, *QUICK) == 0
    shown = capsys.readouterr().out
    file = folder / "certificate.json"
    certificate = Certificate.load(file)
    assert f"{certificate.bound:.4f}" in shown
    assert "not certified" in shown
    assert "drawn anew from the posterior" in shown.replace("\n", " ")
    assert certificate.source.data == "mnist-6k-2"
    assert not file.with_suffix(".parts").exists()
    assert run("--verify", file) == 0
    assert "fresh draws" not in capsys.readouterr().out
    assert run("--verify", file, folder, "--device", "cpu") == 0
    verified = capsys.readouterr().out
    assert "fresh draws" in verified
    assert "verified" in verified


def test_the_output_as_json(folder: Path, tmp_path: Path, capsys) -> None:
    place = tmp_path / "c.json"
    assert run(folder, *QUICK, "--json", "--out", place, "--seed", 3) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = json.loads(captured.out)
    assert shown["bound"] == Certificate.load(place).bound
    assert shown["file"] == str(place)
    assert run("--verify", place, "--json") == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


def test_a_forged_certificate_is_refuted(folder: Path, tmp_path: Path, capsys) -> None:
    place = tmp_path / "c.json"
    run(folder, *QUICK, "--out", place)
    stored = io.read_json(place)
    io.write_json(place, {**stored, "bound": 0.9 * stored["bound"]})
    assert run("--verify", place) == 1
    assert "refuted" in capsys.readouterr().out


def test_ones_own_network(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_for_certify.py").write_text(OWN)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    save_weights("initial.safetensors", model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    save_weights("trained.safetensors", model)
    own = ["--model", "own_for_certify.py:build", "--data", "own_for_certify.py:load"]
    files = ["--weights", "trained.safetensors", "--initial", "initial.safetensors"]
    assert run(*own, *files, *QUICK, "--method", "iter") == 0
    assert "certificate.json" in capsys.readouterr().out
    assert run("--verify", "certificate.json", *own, "--device", "cpu") == 0
    assert "verified" in capsys.readouterr().out
    assert Certificate.load("certificate.json").method["name"] == "iter"
    sys.modules.pop("own_for_certify", None)


def test_the_prior_may_be_trained_on_a_split(folder: Path, tmp_path: Path, capsys) -> None:
    place = tmp_path / "split.json"
    assert run(folder, *QUICK, "--prior-split", 0.5, "--out", place) == 0
    assert "data-dependent prior" in capsys.readouterr().out.replace("\n", " ")
    assert run("--verify", place, folder, "--device", "cpu") == 0


def test_an_interrupted_certification_says_how_to_go_on(
    folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    def interrupted(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.certificates, "certify", interrupted)
    out = str(tmp_path / "c.json")
    assert application.run(["certify", str(folder), *map(str, QUICK), "--out", out]) == 130
    said = capsys.readouterr().err
    assert "the same command goes on" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "needs the folder of a run, or --model"),
        (["{folder}", "--model", "LeNet5"], "give either RUN or --model"),
        (["{folder}/weights"], "not the folder of a training run"),
        (["{folder}", "--method", "magic"], "name must be one of"),
        (["{folder}", "--delta", "2"], "between 0 and 1"),
        (["--verify", "{folder}/config.json"], "no certificate"),
        (["--verify", "{folder}/nothing.json"], "cannot be read"),
    ],
)
def test_misuse_is_one_sentence(folder: Path, arguments: list[str], match: str) -> None:
    with pytest.raises(CurvescopeError, match=match):
        run(*(a.format(folder=folder) for a in arguments))


def test_a_verification_needs_model_and_data_together(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "c.json"
    run(folder, *QUICK, "--out", place)
    with pytest.raises(CurvescopeError, match="need both --model and --data"):
        run("--verify", place, "--data", "mnist-6k")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"--slack": "-1"}, "slack must be positive"), ({"--out": ""}, "is a folder")],
)
def test_what_cannot_be_done_is_refused_before_the_work(
    folder: Path, tmp_path: Path, wrong: dict[str, str], sentence: str
) -> None:
    before = sorted(folder.rglob("*"))
    options = {"--slack": "0.05", "--out": "c.json"} | wrong
    place = tmp_path / options["--out"]
    with pytest.raises(CurvescopeError, match=sentence):
        run(folder, "--out", place, "--slack", options["--slack"], "--epochs", "1", "--quiet")
    assert sorted(folder.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.parent.glob(f"{tmp_path.name}.*")) == []
