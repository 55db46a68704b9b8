"""No command writes over what it reads, nor over anything else unasked."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from curvescope.certificates.certificate import posterior_file
from curvescope.cli import app as application
from curvescope.training import save_weights

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
QUICK = ["--epochs", "2", "--slack", "0.1", "--quiet", "--device", "cpu"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network of one's own: weights, initial weights, code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_for_outputs.py").write_text(OWN)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    save_weights("start.safetensors", model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    save_weights("mlp.safetensors", model)
    yield tmp_path
    sys.modules.pop("own_for_outputs", None)


def command(*more: str, weights: str = "mlp.safetensors") -> list[str]:
    own = ["--model", "own_for_outputs.py:build", "--data", "own_for_outputs.py:load"]
    return ["certify", *own, "--weights", weights, "--initial", "start.safetensors", *QUICK, *more]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_posterior_has_a_name_of_its_own(place: Path, capsys) -> None:
    before = contents(place)
    assert application.run(command("--out", "mlp.json")) == 0
    after = contents(place)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"mlp.json", "mlp.posterior.safetensors"}


def symbolic(file: Path) -> str:
    (file.parent / "link.json").symlink_to(file)
    return "link.json"


def hard(file: Path) -> str:
    os.link(file, file.parent / "hard.json")
    return "hard.json"


@pytest.mark.parametrize("again", [[], ["--again"]])
@pytest.mark.parametrize(
    "name",
    [
        lambda file: file.name,
        lambda file: f"./{file.name}",
        lambda file: f"../{file.parent.name}/{file.name}",
        symbolic,
        hard,
    ],
)
def test_an_output_that_is_an_input_is_refused(
    place: Path, name: Callable[[Path], str], again: list[str], capsys
) -> None:
    """The weights under another name; and the code and the initial weights as well."""
    weights = (place / "mlp.safetensors").rename(place / "mlp.weights")
    shutil.copy(weights, place / "copy.safetensors")
    for given in (weights, place / "own_for_outputs.py"):
        out = name(given)
        before = contents(place)
        assert application.run(command("--out", out, *again, weights=str(weights))) == 2
        said = capsys.readouterr().err
        assert "itself; name another place" in said
        assert contents(place) == before
        for link in ("link.json", "hard.json"):
            (place / link).unlink(missing_ok=True)


@pytest.mark.parametrize("again", [[], ["--again"]])
def test_a_posterior_that_is_an_input_is_refused(place: Path, again: list[str], capsys) -> None:
    (place / "mlp.safetensors").rename(place / "mlp.posterior.safetensors")
    before = contents(place)
    arguments = command("--out", "mlp.json", *again, weights="mlp.posterior.safetensors")
    assert application.run(arguments) == 2
    assert "posterior 'mlp.posterior.safetensors' is --weights itself" in capsys.readouterr().err
    assert contents(place) == before


@pytest.mark.parametrize("there", ["c.json", "c.posterior.safetensors", "c.parts"])
def test_what_exists_is_not_replaced_unasked(place: Path, there: str, capsys) -> None:
    if there == "c.parts":
        (place / there).mkdir()
        (place / there / "notes.txt").write_text("mine")
    elif there.endswith(".json"):
        (place / there).write_text('{"mine": true}')
    else:
        shutil.copy(place / "mlp.safetensors", place / there)
    before = contents(place)
    assert application.run(command("--out", "c.json")) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(place) == before


def test_a_finished_certificate_that_was_tampered_with_is_not_shown(place: Path, capsys) -> None:
    import dataclasses

    from curvescope.certificates import Certificate
    from tests.certificates.test_forgeries import consistent, fewer_errors

    assert application.run(command("--out", "c.json")) == 0
    honest = Certificate.load("c.json")
    forged = fewer_errors(honest, 0.2, 1)
    assert consistent(forged) == forged
    dataclasses.replace(forged).save("c.json")
    before = contents(place)
    capsys.readouterr()
    assert application.run(command("--out", "c.json")) == 2
    captured = capsys.readouterr()
    assert "holds a certificate that is refuted (draws: " in captured.err
    assert captured.out == ""
    assert contents(place) == before
    assert application.run(command("--out", "c.json", "--again")) == 0
    assert Certificate.load("c.json").bound == honest.bound


# Two processes, and kills ----------------------------------------------------------------


def test_two_at_once_one_works_and_the_other_says_so(place: Path) -> None:
    """Both begin at the same moment."""
    program = [sys.executable, "-m", "curvescope", *command("--out", "c.json"), "--epochs", "150"]
    both = [
        subprocess.Popen(program, stderr=subprocess.PIPE, text=True, cwd=place) for _ in range(2)
    ]
    said = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 2]), said  # one may come when the other has finished
    if codes == [0, 2]:
        refused = next(text for text, p in zip(said, both, strict=True) if p.returncode == 2)
        assert "another process is working here" in refused
        assert refused.count("\n") == 1
    assert posterior_file(place / "c.json").exists()
    assert not (place / "c.parts").exists()


def test_a_kill_while_the_configuration_is_written_does_not_block(place: Path, capsys) -> None:
    parts = place / "c.parts"
    parts.mkdir()
    (parts / ".lock").touch()
    (parts / ".config.json.123.abcd.part").write_text('{"kind": "certif')
    assert application.run(command("--out", "c.json")) == 0
    assert not parts.exists()


def test_another_process_that_writes_its_configuration_is_waited_for(place: Path, capsys) -> None:
    from curvescope.io import locked

    parts = place / "c.parts"
    parts.mkdir()
    (parts / ".config.json.123.abcd.part").write_text('{"kind": "certif')
    with locked(parts):
        assert application.run(command("--out", "c.json")) == 2
    assert "another process is working here" in capsys.readouterr().err
    assert (parts / ".config.json.123.abcd.part").exists()


def test_weights_that_are_not_numbers_are_refused(place: Path, capsys) -> None:
    from curvescope import io

    state, _ = io.read_tensors("start.safetensors")
    io.write_tensors("bad.safetensors", {k: v * torch.nan for k, v in state.items()})
    arguments = command("--out", "c.json")
    arguments[arguments.index("start.safetensors")] = "bad.safetensors"
    before = contents(place)
    assert application.run(arguments) == 2
    assert "the weights contain NaN or infinity" in capsys.readouterr().err
    assert contents(place) == before


# The other commands ----------------------------------------------------------------------

TRAIN = ["train", "F-4", "--data", "mnist-6k", "--per-class", "5", "--epochs", "1", "--quiet"]
FOREIGN: dict[str, tuple[list[str], str]] = {
    "train": ([*TRAIN, "--out", "mine"], "mine/notes.txt"),
    "train, resumed": ([*TRAIN, "--out", "mine", "--resume"], "mine/config.json"),
    "analyze": (
        ["analyze", "--model", "own_for_outputs.py:build", "--data", "own_for_outputs.py:load",
         "--weights", "mlp.safetensors", "--quiet", "--out", "mine"],
        "mine/report.html",
    ),
    "analyze, over its weights": (
        ["analyze", "--model", "own_for_outputs.py:build", "--data", "own_for_outputs.py:load",
         "--weights", "mine/mlp.safetensors", "--quiet", "--out", "mine"],
        "mine/mlp.safetensors",
    ),
    "demo": (["demo", "--quiet", "--out", "mine"], "mine/report.html"),
    "reproduce": (
        ["reproduce", "wu2020/random-two-layer", "--quiet", "--out", "mine"],
        "mine/INDEX.md",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_that_holds_something_else_is_left_alone(place: Path, name: str, capsys) -> None:
    arguments, file = FOREIGN[name]
    (place / "mine").mkdir()
    if file.endswith(".safetensors"):
        shutil.copy(place / "mlp.safetensors", place / file)
    else:
        (place / file).write_text('{"mine": true}')
    before = contents(place)
    assert application.run(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(place) == before


def test_a_comparison_replaces_only_itself(place: Path, capsys) -> None:
    for lr in ("0.1", "0.01"):
        assert application.run([*TRAIN, "--lr", lr, "--out", f"runs/{lr}"]) == 0
    compare = ["compare", "runs/0.1", "runs/0.01", "--quiet", "--out"]
    assert application.run([*compare, "table"]) == 0
    assert application.run([*compare, "table"]) == 0  # the same again
    before = contents(place)
    other = ["compare", "runs/0.01", "runs/0.1", "--quiet", "--out", "table"]
    assert application.run(other) == 2
    assert "name another folder, or replace it with --again" in capsys.readouterr().err
    assert contents(place) == before
    assert application.run([*other, "--again"]) == 0
    (place / "mine").mkdir()
    (place / "mine" / "sharpness.png").write_text("mine")
    before = contents(place)
    assert application.run([*compare, "mine"]) == 2
    assert "holds another sharpness.png" in capsys.readouterr().err
    assert contents(place) == before
