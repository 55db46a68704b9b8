"""Ctrl-C at any moment: one sentence, code 130, no traceback, nothing half written."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from curvescope.cli import interrupts
from curvescope.cli.entry import leave, listen
from curvescope.cli.interrupts import Stopped, stoppable

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals to processes are POSIX")
TRAIN = ["train", "F-4", "--data", "digits", "--epochs", "1000000", "--quiet"]


def started(out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, *options, "-m", "curvescope", *TRAIN, "--out", str(out)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@posix
@pytest.mark.parametrize("last", ["typer", "numpy", "torch"])
def test_a_real_signal_while_modules_are_imported(last: str, tmp_path: Path) -> None:
    with started(tmp_path / "out", "-X", "importtime") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.split("|")[-1].strip() == last)
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith("import time:")]
    assert (process.returncode, said) == (130, ["curvescope: interrupted\n"])
    assert list(tmp_path.iterdir()) == []


@posix
def test_a_real_signal_in_the_middle_of_the_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(out)
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.startswith(f"curvescope: interrupted; the epochs so far are in {out}")
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob("*.part"))


def test_the_script_is_the_same_entry() -> None:
    (script,) = entry_points(group="console_scripts", name="curvescope")
    assert script.value == "curvescope.cli:main"


@posix
def test_nothing_slow_is_imported_before_it_is_heard() -> None:
    code = (
        "import sys; from curvescope.cli.entry import listen; listen()\n"
        "slow = {'torch', 'numpy', 'typer', 'rich', 'typing'} & set(sys.modules)\n"
        "print(sorted(slow))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# In this process ------------------------------------------------------------------------


@pytest.fixture
def _heard() -> Iterator[None]:
    """As in a process that the script has started; the tests' own handler comes back."""
    before = signal.signal(signal.SIGINT, leave)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("_heard")
def test_work_is_unwound_and_the_advice_given() -> None:
    unwound = []

    def work() -> None:
        try:
            press()
        finally:
            unwound.append(True)

    with pytest.raises(Stopped, match=r"^go on$"), stoppable("go on"):
        work()
    assert unwound
    assert signal.getsignal(signal.SIGINT) is leave


@pytest.mark.usefixtures("_heard")
def test_an_import_that_turns_it_into_another_error() -> None:
    def load() -> None:
        try:
            press()
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once") from None

    with pytest.raises(Stopped, match="go on"), stoppable("go on"):
        load()
    with pytest.raises(ImportError, match="really missing"), stoppable("go on"):
        raise ImportError("really missing")


@pytest.mark.usefixtures("_heard")
def test_code_that_swallows_it() -> None:
    steps = []

    def work() -> None:
        for step in range(3):
            interrupts.check()
            steps.append(step)
            try:
                if step == 1:
                    press()
            except KeyboardInterrupt:
                pass

    with pytest.raises(Stopped, match="go on"), stoppable("go on"):
        work()
    assert steps == [0, 1]
    with pytest.raises(Stopped, match="go on"), stoppable("go on"), suppress(KeyboardInterrupt):
        press()


@pytest.mark.usefixtures("_heard")
def test_a_destructor_cannot_print_a_traceback(capsys) -> None:
    class Dying:
        def __del__(self) -> None:
            press()

    def work() -> None:
        dying = Dying()
        del dying
        interrupts.check()

    with pytest.raises(Stopped, match="go on"), stoppable("go on"):
        work()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_heard")
def test_where_nothing_was_kept_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="nothing was written"), stoppable("go on", tmp_path / "a"):
        press()
    with pytest.raises(Stopped, match="go on"), stoppable("go on", tmp_path / "a", tmp_path):
        press()


@pytest.mark.usefixtures("_heard")
def test_whoever_wants_it_ignored_is_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for background jobs
    listen()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with stoppable("go on"):
        press()


@posix
def test_leaving_is_at_once() -> None:
    code = (
        "import os, signal; from curvescope.cli.entry import listen; listen()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException:\n    print('caught')\nfinally:\n    print('finally')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "curvescope: interrupted\n")
