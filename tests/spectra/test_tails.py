"""Tails of spectra: densities against counted eigenvalues, laws that were put in, masses."""

from __future__ import annotations

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.operators.simple import Diagonal
from curvescope.spectra import (
    ExactSpectrum,
    TailDensity,
    exact_spectrum,
    power_law,
    spectral_measure,
    tail_density,
    tail_masses,
)
from tests.spectra.matrices import F64, seeded


def pareto(count: int, index: float) -> torch.Tensor:
    """Quantiles of a law with the density ``|λ|^−(index + 1)`` from 1 on."""
    share = (torch.arange(count, dtype=F64) + 0.5) / count
    return share ** (-1 / index)


def exact(values: torch.Tensor, zeros: int = 0) -> ExactSpectrum:
    return ExactSpectrum(values.sort().values, zeros, "primal", 0)


def test_densities_are_counts_over_widths() -> None:
    g = seeded()
    values = torch.randn(500, generator=g, dtype=F64) ** 3
    tails = tail_density(exact(values, zeros=100), bins=30, decades=5)
    top = float(values.abs().max())
    edges = top * 10 ** torch.linspace(-5, 0, 31, dtype=F64)
    for side, sign in (("positive", 1), ("negative", -1)):
        mass = tails.of(side) * edges.diff()
        for k in range(30):
            inside = (sign * values > edges[k]) & (sign * values <= edges[k + 1] * (1 + 1e-9))
            assert float(mass[k]) == pytest.approx(int(inside.sum()) / 600, abs=1e-12)
    torch.testing.assert_close(tails.of("both"), (tails.positive + tails.negative) / 2)


@pytest.mark.parametrize("index", [1.2, 1.7])
def test_the_law_of_a_spectrum_that_has_one(index: float) -> None:
    values = torch.cat([pareto(20_000, index), -pareto(20_000, index)])
    law = power_law(exact(values))
    assert law is not None
    assert law.exponent == pytest.approx(-(index + 1), abs=0.1)
    assert law.r2 >= 0.99
    low, high = law.window
    assert low < 1e-3 * float(values.max()) or low < 2.0
    assert high <= float(values.max())
    for side in ("positive", "negative"):
        one = power_law(exact(values), side=side)
        assert one is not None
        assert one.exponent == pytest.approx(law.exponent, abs=1e-9)


def test_the_widest_window_leaves_a_shoulder_and_a_cut_out() -> None:
    x = torch.logspace(-4, 0, 41, dtype=F64)
    density = 3e-4 * x**-2.5
    density[x < 0.9e-2] = density[20]  # a plateau below 0.01
    density[x > 0.35] *= torch.exp(-30 * (x[x > 0.35] - 0.35))  # and a fall above 0.35
    tails = TailDensity(x, density, density)
    law = power_law(tails, r2=1 - 1e-9)
    assert law is not None
    assert law.window == pytest.approx((1e-2, 10**-0.5))
    assert law.points == 16
    assert law.exponent == pytest.approx(-2.5, abs=1e-9)
    assert law.factor == pytest.approx(3e-4, rel=1e-9)
    loose = power_law(tails)
    assert loose is not None
    assert loose.r2 >= 0.99
    assert loose.window[0] < law.window[0]
    # no wider window has the R²: each neighbor is below
    i, j = int((x < loose.window[0] * 0.999).sum()), int((x < loose.window[1] * 1.001).sum()) - 1
    wider = [(a, b) for a in range(41) for b in range(a, 41) if b - a > j - i]
    for a, b in wider:
        law = power_law(tails, within=(float(x[a]) * 0.999, float(x[b]) * 1.001))
        assert law is not None
        assert law.r2 < 0.99


def test_empty_bins_end_a_window_and_rising_densities_are_no_tail() -> None:
    x = torch.logspace(-4, 0, 41, dtype=F64)
    density = x**-2.0
    density[25] = 0.0
    law = power_law(TailDensity(x, density, density))
    assert law is not None
    assert law.window == pytest.approx((1e-4, float(x[24])))
    assert law.points == 25
    assert power_law(TailDensity(x, x, x)) is None
    assert power_law(TailDensity(x, x * 0, x * 0)) is None
    rising = power_law(TailDensity(x, x, x), within=(1e-3, 1e-1))
    assert rising is not None  # where the window is given, the line is what it is
    assert rising.exponent == pytest.approx(1.0)
    assert power_law(TailDensity(x, x, x), within=(2.0, 3.0)) is None


def test_masses_leave_the_node_at_zero_out() -> None:
    """Most of the spectrum is at zero up to 1e-9: its Ritz value has a side that means nothing."""
    tail = torch.logspace(-1, 0, 20, dtype=F64)
    values = torch.cat([tail, -tail, torch.full((400,), 1e-9, dtype=F64)])
    spectrum = exact_spectrum(Diagonal(values))
    assert tail_masses(spectrum) == pytest.approx((420 / 440, 20 / 440))
    assert tail_masses(spectrum, beyond=1e-3) == pytest.approx((20 / 440, 20 / 440))
    measure = spectral_measure(Diagonal(values), steps=41, probes=50, generator=seeded())
    positive, negative = tail_masses(measure)
    assert positive == pytest.approx(20 / 440, rel=0.1)
    assert negative == pytest.approx(20 / 440, rel=0.1)
    assert float(1 - measure.cdf(torch.tensor([0.0], dtype=F64))) > 0.9


def test_wrong_settings_are_refused() -> None:
    spectrum = exact(pareto(50, 1.0))
    with pytest.raises(CurvescopeError, match="needs an eigenvalue that is not zero"):
        tail_density(exact(torch.zeros(2, dtype=F64)))
    with pytest.raises(CurvescopeError, match="decades must be positive"):
        tail_density(spectrum, decades=0.0)
    with pytest.raises(CurvescopeError, match="r2 must lie above 0 and at most at 1"):
        power_law(spectrum, r2=1.5)
    with pytest.raises(CurvescopeError, match="within must be two rising positive ends"):
        power_law(spectrum, within=(1.0, 0.5))
    with pytest.raises(CurvescopeError, match="side"):
        power_law(spectrum, side="left")
