"""``curvescope view``: its address, its errors, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from curvescope.cli.app import run
from curvescope.reports import server


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    script = "from curvescope.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-u", "-c", script, "view", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_serves_until_ctrl_c_and_ends_in_silence(tmp_path: Path) -> None:
    process = started(tmp_path, "--json")
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address, timeout=20) as answer:
        assert b"no run in this folder yet" in answer.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--open"]])
def test_the_address_is_printed(tmp_path: Path, capsys, monkeypatch, options) -> None:
    opened: list[str] = []

    def stop(self: server.Viewer, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server.Viewer, "serve_forever", stop)
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run(["view", str(tmp_path), *options]) == 0
    shown = capsys.readouterr().out
    assert "http://127.0.0.1:" in shown
    assert ("ctrl-C" in shown) == ("--quiet" not in options)
    assert len(opened) == (options == ["--open"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "is not a folder that can be read"),
        ([".", "--port", "70000"], "--port"),
        ([".", "--host", "0.0.0.0"], "--host must be"),
    ],
)
def test_a_wrong_argument_is_one_sentence(tmp_path, capsys, monkeypatch, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["view", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("curvescope: ")
    assert error.count("\n") == 1
    assert words in error
