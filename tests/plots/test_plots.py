"""Pictures: drawn from results, saved byte for byte the same, no trace in the user's settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

from curvescope._checks import CurvescopeError
from curvescope.operators.simple import Diagonal
from curvescope.plots import spectra, style
from curvescope.spectra import spectral_measure


def curves(deflate: int = 0) -> dict:
    A = Diagonal(torch.cat([torch.linspace(-1, 1, 80), torch.tensor([6.0, 9.0])]).double())
    measure = spectral_measure(
        A, steps=20, probes=4, deflate=deflate, generator=torch.Generator().manual_seed(0)
    )
    return {"H": measure.density(points=256), "again": measure.density(points=256, kappa=10.0)}


def test_a_density_shows_its_values_and_its_outliers() -> None:
    named = curves(deflate=2)
    axes = spectra.densities(named, exact=torch.linspace(-1, 1, 80), title="t").axes[0]
    drawn = {line.get_label(): line for line in axes.lines}
    assert drawn["H"].get_ydata() == pytest.approx(named["H"].values.numpy())
    marks = sorted(float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 2)
    assert marks == pytest.approx([6.0, 6.0, 9.0, 9.0])
    assert axes.get_yscale() == "log"
    assert axes.get_title(loc="left") == "t"


def test_a_log_density_is_in_decades() -> None:
    A = Diagonal(torch.logspace(-3, 2, 60, dtype=torch.float64))
    measure = spectral_measure(A, steps=30, generator=torch.Generator().manual_seed(0))
    curve = measure.log_density(eps=1e-4)
    axes = spectra.densities({"A": curve}, logarithmic=True).axes[0]
    line = next(line for line in axes.lines if line.get_label() == "A")
    x, y = torch.tensor(line.get_xdata()), torch.tensor(line.get_ydata())
    assert float(torch.trapezoid(y, x)) == pytest.approx(1.0, abs=0.02)
    assert -5 < float(x.min()) < -3
    assert 2 < float(x.max()) < 4


def test_eigenvalues_choose_their_axis() -> None:
    positive = spectra.eigenvalues({"G": torch.tensor([3.0, 1.0])}).axes[0]
    mixed = spectra.eigenvalues(
        {"H": torch.tensor([3.0, -1.0])}, errors={"H": torch.tensor([0.1, 0.1])}
    ).axes[0]
    assert (positive.get_yscale(), mixed.get_yscale()) == ("log", "linear")


def test_saved_twice_is_the_same_file(tmp_path: Path) -> None:
    settings = dict(mpl.rcParams)
    first = style.save(spectra.densities(curves()), tmp_path / "a" / "density")
    second = style.save(spectra.densities(curves()), tmp_path / "b" / "density")
    assert [path.suffix for path in first] == [".svg", ".pdf", ".png"]
    for x, y in zip(first, second, strict=True):
        assert x.read_bytes() == y.read_bytes()
    assert style.save(spectra.densities(curves()), tmp_path / "one.png") == [tmp_path / "one.png"]
    assert not list(tmp_path.rglob("*.part"))
    assert dict(mpl.rcParams) == settings


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(CurvescopeError, match="cannot be written"):
        style.save(spectra.densities(curves()), tmp_path / "file" / "density.svg")


def test_without_matplotlib_there_is_one_sentence() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from curvescope.plots import style\n"
        "try: style.panels()\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "plots: pictures need matplotlib; install curvescope[plots]"
