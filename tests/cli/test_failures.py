"""Every command against the world: a full disk, a closed folder, ctrl-C, a missing file.

The disk is made full by the operating system's limit on the size of files, so that writes break off
where they do on a full disk; permission is taken away for real, for root by another user's rights.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from curvescope import io
from curvescope.cli.app import run
from curvescope.data import dataset
from curvescope.experiments import demo as demonstration
from curvescope.experiments.demo import demonstrate
from curvescope.experiments.training import named_data, train_network
from curvescope.reports import demonstration as page
from curvescope.reports import server
from curvescope.reports.demonstration import write_demonstration
from curvescope.training import Recipe
from tests.experiments.examples import TINY

posix = pytest.mark.skipif(sys.platform == "win32", reason="limits and users are POSIX")
OWN = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))

def load():
    g = torch.Generator().manual_seed(0)
    return torch.randn(30, 6, generator=g), torch.arange(30) % 3
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that everyone may read, with a training run and a model of one's own."""
    root = Path(tempfile.mkdtemp(prefix="curvescope-tests-"))
    root.chmod(0o755)
    (root / "own_failing.py").write_text(OWN)
    recipe = Recipe(seed=0, epochs=2, lr=0.1, loss="binary_logistic")
    data = named_data("digits-2", per_class=9)
    train_network("T-4", data, recipe, folder=root / "run")
    train_network("T-4", data, replace(recipe, weight_decay=0.01), folder=root / "decayed")
    yield root
    shutil.rmtree(root)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(demonstration, "demonstrate", functools.partial(demonstrate, plan=TINY))

    def without(found: demonstration.Demonstration, *, figures: bool) -> Path:
        return write_demonstration(found, figures=False)

    monkeypatch.setattr(page, "write_demonstration", without)


def command(name: str, out: Path) -> list[str]:
    """A short run of a command that writes to ``out``."""
    own = "own_failing.py"
    arguments = {
        "demo": ["--out", out],
        "train": ["F-4", "--data", "digits", "--per-class", 3, "--epochs", 2, "--out", out],
        "analyze": [
            *("--model", f"{own}:build", "--data", f"{own}:load", "--out", out),
            *("--steps", 12, "--probes", 4, "--no-figures"),
        ],
        "certify": ["run", "--epochs", 2, "--slack", 0.05, "--out", out / "certificate.json"],
        "reproduce": ["wu2020/random-two-layer", "--out", out],
        "compare": ["run", "decayed", "--out", out],
    }[name]
    return [name, *map(str, arguments), "--quiet"]


WRITING = ("demo", "train", "analyze", "certify", "reproduce", "compare")


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("curvescope: ")
    assert error.count("\n") == 1
    assert "bug" not in error
    return error


@contextmanager
def full_disk(left: int) -> Iterator[None]:
    """No file can grow beyond so many bytes."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def assert_whole(folder: Path) -> None:
    """Whatever lies in the folder is complete."""
    for path in folder.rglob("*"):
        assert path.suffix != ".part", path
        if path.suffix == ".json":
            io.read_json(path)
        elif path.suffix == ".safetensors":
            io.read_tensors(path)


@posix
@pytest.mark.parametrize("left", [0, 700])
@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk(name: str, left: int, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    if name == "certify":
        out.mkdir()
    with full_disk(left):
        code = run(command(name, out))
    assert code == 2
    assert "too large" in sentence(capsys)  # EFBIG stands for ENOSPC here
    assert_whole(tmp_path)
    again = [*command(name, out), *(["--resume"] if name == "train" else [])]
    assert run(again) == 0


@contextmanager
def without_rights() -> Iterator[None]:
    """The rights of somebody else: root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@posix
@pytest.mark.parametrize("name", WRITING)
def test_a_folder_without_permission(name: str, place: Path, capsys) -> None:
    closed = place / "closed"
    closed.mkdir(exist_ok=True)
    closed.chmod(0o555)
    with without_rights():
        code = run(command(name, closed if name == "certify" else closed / "out"))
    assert code == 2
    error = sentence(capsys)
    assert "Permission denied" in error or "cannot be written" in error
    assert list(closed.iterdir()) == []


@posix
def test_a_folder_that_cannot_be_read(place: Path, capsys) -> None:
    secret = place / "secret"
    secret.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() != 0:
        secret.chmod(0)
    with without_rights():
        codes = [run(["view", "secret"]), run(["analyze", "--run", "secret/run"])]
    secret.chmod(0o700)
    assert codes == [2, 2]
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("curvescope: ") for line in lines] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--out", "own_failing.py"], "is a file"),
        (["demo", "--out", "own_failing.py/below"], "cannot be used"),
        (["train", "F-4", "--data", "mnist", "--root", "none"], "--root must be a folder"),
        (["train", "F-4", "--data", "digits", "--out", "own_failing.py"], "is a file"),
        (["analyze", "--run", "none"], "is not the folder of a training run"),
        (["analyze", "--model", "none.py:build", "--data", "digits", "--out", "o"], "no such file"),
        (["certify", "none"], "is not the folder of a training run"),
        (["certify", "--verify", "none.json"], "cannot be read"),
        (["compare", "none", "none"], "none"),
        (["compare", "a", "b", "--against", "luck"], "--against must be one of 'test error'"),
        (["reproduce", "no-such-entry"], "no-such-entry"),
        (["view", "none"], "is not a folder that can be read"),
        (["data", "verify", "--root", "none"], "--root must be a folder"),
    ],
)
def test_a_missing_file(place: Path, capsys, arguments: list[str], words: str) -> None:
    before = sorted(place.iterdir())
    assert run(arguments) == 2
    assert words in sentence(capsys)
    assert [p for p in sorted(place.iterdir()) if p.name != "__pycache__"] == [
        p for p in before if p.name != "__pycache__"
    ]


def test_ctrl_c_where_nothing_is_kept(capsys, monkeypatch, tmp_path: Path) -> None:
    def stop(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["curvescope.data.inventory"], "inventory", stop)
    assert run(["data", "list"]) == 130
    assert sentence(capsys) == "curvescope: interrupted\n"
    monkeypatch.setattr(server, "find_runs", stop)
    assert run(["view", str(tmp_path)]) == 130
    assert sentence(capsys) == "curvescope: interrupted\n"


@posix
def test_one_training_at_a_time(place: Path, tmp_path: Path, capsys) -> None:
    script = (
        "import sys; from pathlib import Path; from curvescope.io import held\n"
        f"with held(Path({str(tmp_path / 'out')!r})):\n"
        "    print('in', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        assert run(command("train", tmp_path / "out")) == 2
        assert "another process is working here" in sentence(capsys)
        other.kill()
        other.wait()
    assert run(command("train", tmp_path / "out")) == 0


def test_the_run_notes_how_its_data_was_asked_for(tmp_path: Path, capsys) -> None:
    options = ["--normalize", "pixel", "--per-class", "4", "--data-seed", "3"]
    arguments = ["train", "F-4", "--data", "digits", "--epochs", "1", "--out", str(tmp_path / "r")]
    assert run([*arguments, *options, "--quiet"]) == 0
    noted = json.loads((tmp_path / "r" / "config.json").read_text())["data"]
    assert noted["options"] == {"normalize": "pixel", "per_class": 4, "seed": 3}
    quick = ["--steps", "8", "--probes", "4", "--no-figures", "--no-classes", "--layers", "fc2"]
    assert run(["analyze", "--run", str(tmp_path / "r"), "--json", *quick]) == 0  # no --data-seed
    capsys.readouterr()
    assert len(dataset("digits", per_class=4, seed=3)) == noted["shapes"][0][0]


def test_output_that_nobody_reads(tmp_path: Path) -> None:
    script = "from curvescope.cli import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", script, "data", "list"], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert done.stderr == b""


# Help and completion --------------------------------------------------------------------

COMMANDS = ("demo", "train", "analyze", "certify", "reproduce", "compare", "view")


@pytest.mark.parametrize("name", [*COMMANDS, "data list", "data verify", "data fetch"])
def test_help_has_examples_and_the_common_options(name: str, capsys) -> None:
    assert run([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(f" curvescope {name}") > 2  # the usage and at least two examples
    for option in ("--json", "--quiet", "--debug"):
        assert option in shown


def test_the_first_help_names_commands_and_exit_codes(capsys) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in (*COMMANDS, "data", "Exit codes", "--install-completion"):
        assert name in shown
    assert "analyse" not in shown


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_completes(shell: str) -> None:
    """What the script of the shell asks for when the user presses tab after ``analyz``."""
    variables = {
        "bash": {"COMP_WORDS": "curvescope analyz", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "curvescope analyz"},
    }[shell]
    done = subprocess.run(
        [sys.executable, "-c", "from curvescope.cli import main; main()"],
        env={**os.environ, **variables, "_CURVESCOPE_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
    )
    assert "analyze" in done.stdout, done.stderr
