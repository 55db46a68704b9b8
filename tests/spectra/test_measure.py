"""The spectral measure and its views: quadrature, moments, densities, deflation, KPM."""

from __future__ import annotations

import math

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.operators.simple import Diagonal
from curvescope.spectra import (
    eigenpairs,
    exact_spectrum,
    frobenius,
    kpm,
    spectral_measure,
    trace,
)
from curvescope.spectra.measure import quadrature
from tests.spectra.matrices import F64, Counting, hessian_like, rotated, seeded
from tests.tolerances import STANDARD_ERRORS

SPECTRUM = hessian_like(500)
MATRIX = rotated(SPECTRUM)


def test_gauss_quadrature_is_exact_up_to_degree_2m_minus_1() -> None:
    A = rotated(torch.linspace(-1, 1, 60, dtype=F64))
    measure = spectral_measure(A, steps=5, probes=2, kind="rademacher", generator=seeded())
    v = A.domain.random(2, generator=seeded())
    v = v / v.norm(dim=1, keepdim=True)
    power = torch.eye(60, dtype=F64)
    for degree in range(10):
        truth = ((v @ power) * v).sum(1)
        estimate = (measure.weights * measure.nodes**degree).sum(1)
        torch.testing.assert_close(estimate, truth, atol=1e-12, rtol=0)
        power = power @ A.dense()
    beyond = (measure.weights * measure.nodes**10).sum(1)
    assert float((beyond - ((v @ power) * v).sum(1)).abs().min()) > 1e-6


def test_first_moments_agree_with_trace_and_frobenius() -> None:
    measure = spectral_measure(MATRIX, steps=40, probes=40, generator=seeded())
    tr = trace(MATRIX, probes=100, generator=seeded(1))
    norm = frobenius(MATRIX, probes=100, generator=seeded(2))
    first, second = measure.moment(1), measure.moment(2)
    n = measure.dimension
    error = math.hypot(n * first.stderr, tr.stderr)
    assert abs(n * first.value - tr.value) <= STANDARD_ERRORS * error
    error = math.hypot(n * second.stderr, 2 * norm.value * norm.stderr)
    assert abs(n * second.value - norm.value**2) <= STANDARD_ERRORS * error
    assert abs(n * first.value - float(SPECTRUM.sum())) <= STANDARD_ERRORS * n * first.stderr
    assert measure.moment(0).value == pytest.approx(1.0, abs=1e-12)


def test_moments_are_calibrated() -> None:
    truth = float(SPECTRUM.sum()) / 500
    z = []
    for seed in range(200):
        run = spectral_measure(MATRIX, steps=6, probes=20, generator=seeded(seed)).moment(1)
        z.append((run.value - truth) / run.stderr)
    scores = torch.tensor(z)
    assert abs(float(scores.mean())) < 0.35
    assert 0.75 < float(scores.std()) < 1.35


@pytest.mark.parametrize("steps", [2, 8, 128, 400])
@pytest.mark.parametrize("points", [64, 1024])
def test_densities_integrate_to_one(steps: int, points: int) -> None:
    measure = spectral_measure(MATRIX, steps=steps, probes=2, generator=seeded())
    for curve in (measure.density(points), measure.log_density(1e-6, points)):
        integral = float(torch.trapezoid(curve.values, curve.grid))
        assert integral == pytest.approx(1.0, abs=1e-3)
        assert curve.mass == pytest.approx(1.0, abs=1e-5)
        assert bool((curve.values >= 0).all())


def test_density_is_the_paper_s_sum_of_bumps() -> None:
    measure = spectral_measure(MATRIX, steps=30, probes=3, generator=seeded())
    curve = measure.density(points=1024, kappa=3.0)
    half = (measure.support[1] - measure.support[0]) * 0.55
    sigma = half * 2 / (29 * math.sqrt(8 * math.log(3)))
    assert curve.sigma == pytest.approx(sigma)
    gap = curve.grid[:, None, None] - measure.nodes
    bumps = torch.exp(-0.5 * (gap / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    expected = (bumps * measure.weights).sum(2).mean(1)
    # cell averages differ from point values by (h/σ)²/24
    torch.testing.assert_close(curve.values, expected, atol=2e-3 * float(expected.max()), rtol=0)


def test_log_density_places_mass_where_the_logarithms_are() -> None:
    values = torch.cat([torch.full((50,), 1e-3), torch.full((50,), -10.0)]).double()
    measure = spectral_measure(rotated(values), steps=10, probes=200, generator=seeded())
    curve = measure.log_density(eps=1e-6)
    middle = (math.log(1e-3) + math.log(10)) / 2
    cell = float(curve.grid[1] - curve.grid[0])
    left = float(curve.values[curve.grid < middle].sum()) * cell
    assert left == pytest.approx(0.5, abs=0.03)
    peak = float(curve.grid[int(curve.values.argmax())])
    assert min(abs(peak - math.log(1e-3)), abs(peak - math.log(10))) < 3 * curve.sigma
    scaled = measure.log_density(eps=1e-6, jacobian=True)
    assert scaled.mass == pytest.approx(0.5 / 1e-3 + 0.5 / 10, rel=0.05)


def test_bands_hold_the_exact_smoothed_density() -> None:
    """The same bumps on the exact eigenvalues lie in the band nearly everywhere."""
    measure = spectral_measure(MATRIX, steps=60, probes=30, generator=seeded())
    curve = measure.density(256, margin=0.05)
    edges = torch.cat([curve.grid, curve.grid[-1:] + curve.grid[1] - curve.grid[0]])
    edges = edges - (curve.grid[1] - curve.grid[0]) / 2
    below = torch.special.ndtr((edges[:, None] - SPECTRUM) / curve.sigma).mean(1)
    exact = below.diff() / (curve.grid[1] - curve.grid[0])
    low, high = curve.band(0.9999)
    floor = 0.02 * float(exact.max())  # where Gauss quadrature smears between nodes
    inside = (exact >= low - floor) & (exact <= high + floor)
    assert float(inside.double().mean()) > 0.97


def test_spiked_matrix_of_the_paper() -> None:
    """TR fig. 15a: outliers to 1e-6 by eigenpairs and to 2 % by peaks; cdf to 0.02."""
    n = 2000
    Z = torch.randn(n, n, dtype=F64, generator=seeded(0))
    Y = Z @ Z.T / n
    Y[0, 0] += 5
    Y[1, 1] += 4
    Y[2, 2] += 3
    from curvescope.operators.simple import Dense

    A = Dense(Y, symmetric=True)
    exact = exact_spectrum(A)
    top = exact.values.flip(0)[:3]
    pairs = eigenpairs(A, 3, tol=1e-7, generator=seeded(1))
    torch.testing.assert_close(pairs.values, top, atol=1e-6, rtol=0)
    measure = spectral_measure(A, steps=128, probes=10, generator=seeded(2))
    # the largest gap is at a step of one of the two distribution functions
    points = torch.cat([exact.values, measure.nodes.flatten()])
    gap = torch.stack(
        [
            (measure.cdf(points) - exact.cdf(points)).abs().max(),
            (measure.cdf(points - 1e-12) - exact.cdf(points - 1e-12)).abs().max(),
        ]
    )
    assert float(gap.max()) <= 0.015
    curve = measure.density()
    for value in top.tolist():
        near = (curve.grid - value).abs() < 0.1 * value
        peak = curve.grid[near][int(curve.values[near].argmax())]
        assert float(peak) == pytest.approx(value, rel=0.02)


def test_cdf_steps_at_eigenvalues_and_slopes_in_the_bulk() -> None:
    """Half the mass at zero and a bulk on [1, 2]: a step of 1/2, then a line."""
    values = torch.cat([torch.zeros(400), torch.linspace(1, 2, 400)]).double()
    measure = spectral_measure(rotated(values), steps=12, probes=40, generator=seeded())
    x = torch.tensor([-1e-6, 1e-6, 0.9, 1.25, 1.5, 1.75, 2.1], dtype=F64)
    expected = torch.tensor([0.0, 0.5, 0.5, 0.625, 0.75, 0.875, 1.0], dtype=F64)
    torch.testing.assert_close(measure.cdf(x), expected, atol=0.03, rtol=0)
    fine = measure.cdf(torch.linspace(-1, 3, 500, dtype=F64))
    assert bool((fine.diff() >= -1e-12).all())


def test_deflation_in_one_call() -> None:
    A = Counting(MATRIX)
    measure = spectral_measure(A, steps=40, probes=6, deflate=10, generator=seeded())
    assert measure.products == A.columns
    torch.testing.assert_close(measure.outliers, SPECTRUM[:10], atol=1e-7, rtol=0)
    assert float(measure.nodes.max()) < 1.0, "an outlier leaked into the bulk"
    assert measure.moment(0).value == pytest.approx(1.0, abs=1e-12)
    plain = spectral_measure(MATRIX, steps=40, probes=6, generator=seeded())
    truth = float(SPECTRUM.sum()) / 500
    assert abs(measure.moment(1).value - truth) <= STANDARD_ERRORS * measure.moment(1).stderr
    assert measure.moment(1).stderr < 0.5 * plain.moment(1).stderr
    assert measure.density().sigma < 0.3 * plain.density().sigma
    assert float(measure.cdf(torch.tensor([1.2]))[0]) == pytest.approx(1 - 10 / 500, abs=1e-9)
    given = spectral_measure(
        A, steps=5, generator=seeded(), deflate=eigenpairs(A, 3, generator=seeded())
    )
    assert given.products == 5


def test_fast_and_slow_agree_on_smooth_functions() -> None:
    fast = spectral_measure(MATRIX, steps=80, probes=3, reorthogonalize=False, generator=seeded())
    slow = spectral_measure(MATRIX, steps=80, probes=3, reorthogonalize=True, generator=seeded())
    grid = torch.linspace(-1, 10, 30, dtype=F64)
    torch.testing.assert_close(fast.cdf(grid), slow.cdf(grid), atol=0.01, rtol=0)
    a, b = fast.expectation(torch.cos), slow.expectation(torch.cos)
    assert a.value == pytest.approx(b.value, abs=1e-10)


def test_kpm_agrees_with_quadrature() -> None:
    spectrum = torch.linspace(-1, 1, 400, dtype=F64)
    A = Counting(rotated(spectrum))
    moments = kpm(A, degree=101, probes=16, generator=seeded())
    assert moments.products == A.columns == 32 + 16 * 51
    assert moments.moments.shape == (16, 102)
    low, high = moments.support
    scaled = (spectrum - (low + high) / 2) / ((high - low) / 2)
    truth = torch.cos(torch.arange(102)[:, None] * torch.acos(scaled)).mean(1)
    mean, error = moments.moments.mean(0), moments.moments.std(0) / 4
    assert bool(((mean - truth).abs() <= 6 * error + 1e-12).all())  # 15 degrees of freedom
    curve = moments.density()
    assert curve.mass == pytest.approx(1.0, abs=0.01)
    measure = spectral_measure(A, steps=60, probes=16, generator=seeded())
    step = curve.grid[1] - curve.grid[0]
    shares = torch.cumsum(curve.values, 0) * step
    torch.testing.assert_close(shares, measure.cdf(curve.grid), atol=0.03, rtol=0)


def test_quadrature_of_chebyshev() -> None:
    """T of the Chebyshev weight: nodes cos((2j−1)π/2m), weights 1/m."""
    m = 8
    betas = torch.full((m,), 0.5, dtype=F64)
    betas[0] = math.sqrt(0.5)
    nodes, weights = quadrature(torch.zeros(m, dtype=F64), betas)
    angles = (2 * torch.arange(m, 0, -1, dtype=F64) - 1) * math.pi / (2 * m)
    torch.testing.assert_close(nodes, torch.cos(angles), atol=1e-14, rtol=0)
    torch.testing.assert_close(weights, torch.full((m,), 1 / m, dtype=F64), atol=1e-14, rtol=0)


def test_misuse() -> None:
    measure = spectral_measure(MATRIX, steps=5, generator=seeded())
    with pytest.raises(CurvescopeError, match="kappa must be greater than 1, got 1"):
        measure.density(kappa=1)
    with pytest.raises(CurvescopeError, match="points must be an integer of at least 2"):
        measure.density(points=1)
    with pytest.raises(CurvescopeError, match="eps must be positive"):
        measure.log_density(eps=0.0)
    with pytest.raises(CurvescopeError, match="kind must be one of"):
        spectral_measure(MATRIX, kind="uniform", generator=seeded())
    with pytest.raises(CurvescopeError, match="must leave a bulk of the 2 dimensions, got 2"):
        spectral_measure(Diagonal(torch.ones(2)), deflate=2, generator=seeded())
    with pytest.raises(CurvescopeError, match="k must be an integer of at least 0"):
        measure.moment(-1)
