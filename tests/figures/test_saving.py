"""Pictures: drawn from results, saved byte for byte the same, no trace in the user's settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.figures import style
from curvescope.figures.plot import plot
from curvescope.operators.simple import Diagonal
from curvescope.spectra import spectral_measure


def drawn() -> object:
    A = Diagonal(torch.cat([torch.linspace(-1, 1, 80), torch.tensor([6.0, 9.0])]).double())
    generator = torch.Generator().manual_seed(0)
    return plot(spectral_measure(A, steps=20, probes=4, deflate=2, generator=generator))


def test_saved_twice_is_the_same_file(tmp_path: Path) -> None:
    settings = dict(mpl.rcParams)
    first = style.save(drawn(), tmp_path / "a" / "density")
    second = style.save(drawn(), tmp_path / "b" / "density")
    assert [path.suffix for path in first] == [".svg", ".pdf", ".png"]
    for x, y in zip(first, second, strict=True):
        assert x.read_bytes() == y.read_bytes()
    assert style.save(drawn(), tmp_path / "one.png") == [tmp_path / "one.png"]
    assert not list(tmp_path.rglob("*.part"))
    assert dict(mpl.rcParams) == settings


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(CurvescopeError, match="cannot be written"):
        style.save(drawn(), tmp_path / "file" / "density.svg")


def test_without_matplotlib_there_is_one_sentence() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from curvescope.figures import style\n"
        "try: style.panels()\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "plots: pictures need matplotlib; install curvescope[plots]"
