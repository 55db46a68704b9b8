"""The command line: one sentence and an exit code for every kind of failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from curvescope.cli import app as application
from curvescope.cli.app import run
from curvescope.errors import CurvescopeError
from curvescope.experiments import demo as demonstration


def one_sentence(stderr: str) -> bool:
    return stderr.startswith("curvescope: ") and stderr.count("\n") == 1


def test_no_command_shows_the_help(capsys) -> None:
    assert run([]) == 0
    assert "demo" in capsys.readouterr().out


def test_version(capsys) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("0.")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such-command"], "no-such-command"),
        (["demo", "--sed", "1"], "--sed"),
        (["demo", "--seed", "one"], "--seed"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "extra"], "extra"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_code_2(capsys, arguments, named) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert one_sentence(captured.err)
    assert named in captured.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CurvescopeError("[bold]", "stays"), 2),
        (RuntimeError("boom"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_failures_become_one_sentence(monkeypatch, capsys, error, code) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise error

    monkeypatch.setattr(demonstration, "demonstrate", fail)
    assert run(["demo", "--quiet"]) == code
    captured = capsys.readouterr()
    assert one_sentence(captured.err)
    assert str(error) in captured.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["data", "list"], ["data", "list", "--json"]])
def test_output_that_cannot_be_written(arguments: list[str]) -> None:
    script = "from curvescope.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    said = "curvescope: standard output: cannot be written (No space left on device)\n"
    assert done.stderr.decode() == said


def test_a_closed_output_is_no_bug(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["data", "list"]) == 0
    assert capsys.readouterr().err == ""


def test_help_fits_into_80_columns(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["demo", "train", "analyze", "certify", "reproduce", "compare", "view"]
    for command in ([], *([word] for word in words), ["data"], ["data", "fetch"]):
        assert run([*command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        assert "..." not in shown.split("Commands:")[-1] or command  # no description is cut off
        wrapped = [line for line in shown.splitlines() if line.startswith(" " * 24)]
        assert len(wrapped) <= 6, wrapped


def test_debug_lets_the_traceback_through(monkeypatch) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(demonstration, "demonstrate", fail)
    with pytest.raises(RuntimeError, match="boom"):
        application.run(["demo", "--debug", "--quiet"])


@pytest.mark.parametrize(
    ("error", "much"),
    [
        (RuntimeError("can't allocate memory: you tried to allocate 313599996864 bytes."), "313.6"),
        (MemoryError(), ""),
    ],
)
def test_too_little_memory_is_no_bug(monkeypatch, capsys, error: Exception, much: str) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise error

    monkeypatch.setattr(demonstration, "demonstrate", fail)
    assert run(["demo"]) == 2
    said = capsys.readouterr().err
    assert one_sentence(said)
    asked = f" for {much} GB more" if much else ""
    assert f"there is not enough memory{asked}; use a smaller network" in said
