"""The bar shows what the estimators report, and stays silent where nobody looks."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from curvescope.cli import progress
from curvescope.operators.simple import Diagonal
from curvescope.spectra import lanczos


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error as a wide terminal that can be read."""
    screen = io.StringIO()

    def console(*, stderr: bool, quiet: bool) -> Console:
        assert stderr
        return Console(file=screen, force_terminal=True, width=160, quiet=quiet)

    monkeypatch.setattr(progress, "Console", console)
    return screen


def run(display: progress.Display) -> None:
    A = Diagonal(torch.linspace(1, 2, 40, dtype=torch.float64))
    with display:
        display.stage("spectrum of H")
        lanczos(A, 7, generator=torch.Generator().manual_seed(0), progress=display.step)


def test_steps_products_and_time_left_are_shown(terminal: io.StringIO) -> None:
    run(progress.Display())
    shown = terminal.getvalue()
    assert "spectrum of H: lanczos" in shown
    assert "7/7" in shown
    assert "7 products, 0 s left" in shown


def test_quiet_is_quiet(terminal: io.StringIO) -> None:
    run(progress.Display(quiet=True))
    assert terminal.getvalue() == ""


def test_nothing_is_drawn_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    run(progress.Display())
    assert capsys.readouterr() == ("", "")
