"""The command line: one sentence and an exit code for every kind of failure."""

import pytest

from curvescope._checks import CurvescopeError
from curvescope.cli import app as application
from curvescope.cli import demo as demo_command
from curvescope.cli.app import main, run


def one_sentence(stderr: str) -> bool:
    return stderr.startswith("curvescope: ") and stderr.count("\n") == 1


def test_no_command_shows_the_help(capsys) -> None:
    assert run([]) == 0
    assert "demo" in capsys.readouterr().out


def test_main_exits_with_the_code() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["no-such-command"])


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
    [(CurvescopeError("[bold] is kept"), 2), (RuntimeError("boom"), 1), (KeyboardInterrupt(), 130)],
)
def test_failures_become_one_sentence(monkeypatch, capsys, error, code) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise error

    monkeypatch.setattr(demo_command, "demonstrate", fail)
    assert run(["demo", "--quiet"]) == code
    captured = capsys.readouterr()
    assert one_sentence(captured.err)
    assert str(error) in captured.err


def test_debug_lets_the_traceback_through(monkeypatch) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(demo_command, "demonstrate", fail)
    with pytest.raises(RuntimeError, match="boom"):
        application.run(["demo", "--debug", "--quiet"])
