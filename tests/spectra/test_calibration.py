"""Standard errors in the root mean square, and intervals that hold as often as they say.

400 runs of every estimator, on the spectra that are hardest for each: where one eigenvalue
carries everything the samples are as skewed as they can be. `benchmarks/intervals.py` has more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import Dense, Diagonal
from curvescope.spectra import (
    Estimate,
    SpectralMeasure,
    diagonal,
    frobenius,
    kpm,
    logdet,
    spectral_measure,
    trace,
)
from tests.spectra.matrices import F64, rotated, seeded

SEEDS = 400
N = 60
LEVELS = (0.95, 0.997)
SPECTRA = {
    "flat": 1 + 0.1 * torch.randn(N, generator=seeded(0), dtype=F64),
    "one dominant": torch.cat([torch.tensor([100.0]), torch.rand(N - 1, generator=seeded(1)) / 10]),
    "signed": torch.cat([torch.tensor([30.0]), -torch.rand(N - 1, generator=seeded(2)) / 5]),
    "decaying": torch.arange(1, N + 1, dtype=F64) ** -1.5,
    "two outliers": torch.cat([torch.tensor([8.0, 5.0, 4.9]), torch.linspace(-1, 1, N - 3)]),
    "rank 5": torch.cat([torch.tensor([3.0, 2, 2, 1, 0.5]), torch.zeros(N - 5)]),
}


def at_least(level: float, tests: int) -> int:
    """How many of the seeds must hold, so that a true level fails in one of a thousand tests."""
    return int(binom.ppf(1e-3 / tests, SEEDS, level))


def check(runs: Sequence[Estimate[float]], truth: float) -> None:
    """The mean square of the errors against that of `stderr`, and the intervals."""
    errors = torch.tensor([run.value - truth for run in runs], dtype=F64)
    stated = torch.tensor([run.stderr for run in runs], dtype=F64)
    assert bool((stated > 0).all())
    ratio = float((errors.square().mean() / stated.square().mean()).sqrt())
    # The mean of 400 squares of χ² numbers is known to about 20 %, that of a root to 10 %.
    assert ratio < 1.25
    for level in LEVELS:
        ends = [run.interval(level) for run in runs]
        held = sum(low <= truth <= high for low, high in ends)
        assert held >= at_least(level, 100), f"{held} of {SEEDS} at {level}"


def dense(name: str) -> tuple[LinearOperator, Tensor]:
    eigenvalues = SPECTRA[name].double()
    return Dense(rotated(eigenvalues).dense(), psd=bool((eigenvalues >= 0).all())), eigenvalues


SUMS: dict[str, tuple[Callable[..., Estimate[float]], str, int]] = {
    "trace": (trace, "hutchinson", 4),
    "XTrace": (trace, "xtrace", 4),
    "Frobenius": (frobenius, "hutchinson", 4),
    "Hutch++": (frobenius, "hutch++", 6),
}


@pytest.mark.parametrize("probes", [4, 8, 16])
@pytest.mark.parametrize(
    ("name", "spectrum"),
    [
        ("trace", "one dominant"),
        ("trace", "signed"),
        ("XTrace", "decaying"),
        ("Frobenius", "one dominant"),
        ("Hutch++", "decaying"),
    ],
)
def test_sums(name: str, spectrum: str, probes: int) -> None:
    estimator, method, least = SUMS[name]
    A, eigenvalues = dense(spectrum)
    truth = float(eigenvalues.sum() if estimator is trace else eigenvalues.norm())
    check(
        [
            estimator(A, probes=max(probes, least), method=method, generator=seeded(seed))
            for seed in range(SEEDS)
        ],
        truth,
    )


@pytest.mark.parametrize("name", ["XTrace", "Hutch++"])
def test_sums_of_a_flat_spectrum(name: str) -> None:
    """Deflation finds nothing there, and its samples are the most alike."""
    estimator, method, _ = SUMS[name]
    A, eigenvalues = dense("flat")
    truth = float(eigenvalues.sum() if estimator is trace else eigenvalues.norm())
    check(
        [estimator(A, probes=8, method=method, generator=seeded(seed)) for seed in range(SEEDS)],
        truth,
    )


@pytest.mark.parametrize("probes", [4, 16])
def test_the_diagonal(probes: int) -> None:
    A, _ = dense("decaying")
    truth = torch.diagonal(A.dense())
    runs = [diagonal(A, probes=probes, generator=seeded(seed)) for seed in range(SEEDS)]
    errors = torch.stack([run.value - truth for run in runs])
    stated = torch.stack([run.stderr for run in runs])
    ratio = float((errors.square().mean() / stated.square().mean()).sqrt())
    assert 0.9 < ratio < 1.15
    for level in LEVELS:
        ends = [run.interval(level) for run in runs]
        held = torch.stack([(low <= truth) & (truth <= high) for low, high in ends]).sum(0)
        assert int(held.min()) >= at_least(level, 100 * N)


@functools.cache
def _many(spectrum: str, steps: int) -> SpectralMeasure:
    """All probes of 400 runs of 16; a diagonal matrix is a rotated one for Gaussian probes."""
    A = Diagonal(SPECTRA[spectrum].double())
    return spectral_measure(A, steps=steps, probes=16 * SEEDS, generator=seeded())


def measures(spectrum: str, steps: int, probes: int) -> list[SpectralMeasure]:
    """400 measures with so many probes each."""
    many = _many(spectrum, steps)
    runs = [slice(i, i + probes) for i in range(0, SEEDS * probes, probes)]
    return [
        dataclasses.replace(
            many, nodes=many.nodes[run], weights=many.weights[run], residuals=many.residuals[run]
        )
        for run in runs
    ]


@pytest.mark.parametrize("probes", [4, 8, 16])
@pytest.mark.parametrize("spectrum", ["one dominant", "rank 5"])
def test_moments_of_the_measure(spectrum: str, probes: int) -> None:
    """Eight steps are exact for the moments up to the fifteenth, so that all error is sampling."""
    eigenvalues = SPECTRA[spectrum].double()
    runs = measures(spectrum, 8, probes)
    for k in (1, 2, 4):
        check([run.moment(k) for run in runs], float((eigenvalues**k).mean()))


@pytest.mark.parametrize("probes", [4, 8, 16])
def test_expectations_of_a_logarithm(probes: int) -> None:
    eigenvalues = SPECTRA["one dominant"].double()
    runs = [
        run.expectation(lambda x: (x + 0.1).log()) for run in measures("one dominant", 8, probes)
    ]
    check(runs, float((eigenvalues + 0.1).log().mean()))


@pytest.mark.parametrize("probes", [4])
def test_log_determinants(probes: int) -> None:
    A, eigenvalues = dense("one dominant")
    truth = float((eigenvalues + 0.1).log().sum())
    runs = [
        logdet(A, damping=0.1, steps=8, probes=probes, generator=seeded(seed))
        for seed in range(SEEDS)
    ]
    check(runs, truth)


@pytest.mark.parametrize("probes", [4, 8, 16])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_bands_of_densities_between_eigenvalues_too(logarithmic: bool, probes: int) -> None:
    """At every point the band holds the mean curve: where few probes have a node and at peaks."""
    eigenvalues = SPECTRA["two outliers"].double()
    ends = (float(eigenvalues.min()), float(eigenvalues.max()))
    curves = []
    for measure in measures("two outliers", 8, probes):
        measure = dataclasses.replace(measure, support=ends)  # the same grid for all
        if logarithmic:
            nodes = measure.nodes.sign() * measure.nodes.abs().clamp(1e-2, 10)
            nodes[:, 0], nodes[:, -1] = -1e-2, 10  # the same ends for all
            measure = dataclasses.replace(measure, nodes=nodes)
            curves.append(measure.log_density(1e-3, points=100))
        else:
            curves.append(measure.density(points=100))
    truth = torch.stack([curve.values for curve in curves]).mean(0)
    for level in LEVELS:
        bands = [curve.band(level) for curve in curves]
        held = torch.stack([(low <= truth) & (truth <= high) for low, high in bands]).sum(0)
        assert int(held.min()) >= at_least(level, 1000), f"{int(held.argmin())} at {level}"
    peak = truth.argmax()
    low, high = curves[0].band(0.95)
    assert 0 < float(high[peak] - low[peak]) < 12 * float(truth[peak])


@pytest.mark.parametrize("probes", [4, 16])
def test_bands_of_the_kernel_polynomial_method(probes: int) -> None:
    eigenvalues = torch.cat([torch.tensor([3.0]), torch.linspace(-1, 1, 59)]).double()
    A = rotated(eigenvalues)
    runs = [kpm(A, degree=24, probes=probes, generator=seeded(seed)) for seed in range(SEEDS)]
    # A small operator: the pilot's steps find its ends exactly, so that all have one grid.
    curves = [dataclasses.replace(run, support=runs[0].support).density(50) for run in runs]
    truth = torch.stack([curve.values for curve in curves]).mean(0)
    for level in LEVELS:
        bands = [curve.band(level) for curve in curves]
        held = torch.stack([(low <= truth) & (truth <= high) for low, high in bands]).sum(0)
        assert int(held.min()) >= at_least(level, 1000)


def test_an_exact_number_is_its_own_interval() -> None:
    exact = Estimate(2.0, 0.0, 5, 1, bias=0.25)
    assert exact.interval(0.99) == (1.75, 2.25)
    alone = Estimate(2.0, float("inf"), 1, 1)
    assert alone.interval() == (-float("inf"), float("inf"))
    with pytest.raises(CurvescopeError, match="level must lie between 0 and 1, got 95"):
        exact.interval(95)
