"""Trace, Frobenius norm, diagonal: within their error bars, and the bars are calibrated."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import Diagonal
from curvescope.spectra import Estimate, diagonal, frobenius, trace
from tests.spectra.matrices import F64, Counting, hessian_like, rotated, seeded
from tests.tolerances import STANDARD_ERRORS

SPECTRUM = hessian_like(300)
MATRIX = rotated(SPECTRUM)
TRACE = float(SPECTRUM.sum())
FROBENIUS = float(SPECTRUM.square().sum().sqrt())

ESTIMATORS: dict[str, tuple[Callable[..., Estimate[float]], str, float]] = {
    "trace": (trace, "hutchinson", TRACE),
    "xtrace": (trace, "xtrace", TRACE),
    "frobenius": (frobenius, "hutchinson", FROBENIUS),
    "frobenius++": (frobenius, "hutch++", FROBENIUS),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("seed", range(3))
def test_within_the_stated_error(name: str, seed: int) -> None:
    estimator, method, truth = ESTIMATORS[name]
    A = Counting(MATRIX)
    estimate = estimator(A, probes=60, method=method, generator=seeded(seed))
    assert abs(estimate.value - truth) <= STANDARD_ERRORS * estimate.stderr
    assert estimate.stderr < 0.5 * abs(truth)
    assert estimate.products == A.columns <= 60


@pytest.mark.parametrize("name", ESTIMATORS)
def test_standard_errors_are_calibrated(name: str) -> None:
    """z-scores over 200 seeds: mean near 0, spread near 1, hardly any beyond 4."""
    estimator, method, truth = ESTIMATORS[name]
    runs = [estimator(MATRIX, probes=90, method=method, generator=seeded(s)) for s in range(200)]
    z = torch.tensor([(run.value - truth) / run.stderr for run in runs])
    assert abs(float(z.mean())) < 0.35
    assert 0.75 < float(z.std()) < 1.35
    assert int((z.abs() > 4).sum()) <= 1


def test_xtrace_beats_hutchinson_at_equal_cost() -> None:
    spread = {}
    for method in ("hutchinson", "xtrace"):
        values = [
            trace(MATRIX, probes=40, method=method, generator=seeded(s)).value for s in range(60)
        ]
        spread[method] = float((torch.tensor(values) - TRACE).square().mean().sqrt())
    assert spread["xtrace"] < 0.4 * spread["hutchinson"]


def test_deflated_frobenius_beats_hutchinson_at_equal_cost() -> None:
    spread = {}
    for method in ("hutchinson", "hutch++"):
        values = [
            frobenius(MATRIX, probes=60, method=method, generator=seeded(s)).value
            for s in range(60)
        ]
        spread[method] = float((torch.tensor(values) - FROBENIUS).square().mean().sqrt())
    assert spread["hutch++"] < 0.2 * spread["hutchinson"]


def test_xtrace_is_exact_once_it_has_the_range() -> None:
    low_rank = torch.cat([torch.tensor([3.0, -2.0, 1.0]), torch.zeros(97)]).double()
    estimate = trace(rotated(low_rank), probes=10, method="xtrace", generator=seeded())
    assert estimate.value == pytest.approx(2.0, abs=1e-10)
    assert estimate.stderr < 1e-10


def test_xtrace_leave_one_out_is_the_paper_s_definition() -> None:
    """Against the definition, one QR per left-out column (Epperly et al. 2024, eq. 2.3)."""
    A, n, s = MATRIX.dense(), 300, 6
    omega = MATRIX.domain.random(s, kind="sphere", generator=seeded(5)).T

    def all_terms(chosen: list[int]) -> Tensor:
        terms = []
        for i in chosen:
            others = [j for j in chosen if j != i]
            Q = torch.linalg.qr(A @ omega[:, others])[0]
            u = omega[:, i] - Q @ (Q.T @ omega[:, i])
            outside = (n - len(others)) * (u @ A @ u) / (u @ u)
            terms.append(float(torch.trace(Q.T @ A @ Q) + outside))
        return torch.tensor(terms, dtype=F64)

    estimate = trace(MATRIX, probes=12, method="xtrace", generator=seeded(5))
    terms = all_terms(list(range(s)))
    assert estimate.value == pytest.approx(float(terms.mean()), rel=1e-10)
    without = torch.stack([all_terms([j for j in range(s) if j != i]).mean() for i in range(s)])
    jackknife = float((without - without.mean()).square().sum().sqrt())
    spread = float(terms.std()) / math.sqrt(s)
    assert estimate.stderr == pytest.approx(math.sqrt(spread * jackknife), rel=1e-8)


def test_enough_probes_make_it_exact() -> None:
    A = rotated(torch.tensor([4.0, -1.0, 0.5, 0.0], dtype=F64))
    for estimate, truth in (
        (trace(A, probes=4, generator=seeded()), 3.5),
        (trace(A, probes=9, method="xtrace", generator=seeded()), 3.5),
        (frobenius(A, probes=5, generator=seeded()), math.sqrt(17.25)),
    ):
        assert estimate.value == pytest.approx(truth, abs=1e-12)
        assert (estimate.stderr, estimate.products) == (0.0, 4)
    exact = diagonal(A, probes=4, generator=seeded())
    torch.testing.assert_close(exact.value, torch.diagonal(A.dense()))
    assert float(exact.stderr.abs().max()) == 0


def test_diagonal_within_its_errors_and_calibrated() -> None:
    truth = torch.diagonal(MATRIX.dense())
    z = []
    for seed in range(200):
        estimate = diagonal(MATRIX, probes=40, generator=seeded(seed))
        z.append((estimate.value - truth) / estimate.stderr)
    scores = torch.stack(z)
    assert abs(float(scores.mean())) < 0.05
    assert 0.9 < float(scores.std()) < 1.2
    # t with 39 degrees of freedom: beyond 4 in 0.03 % of 60,000 scores
    assert float((scores.abs() > STANDARD_ERRORS).double().mean()) < 1e-3


def test_one_probe_has_no_error_bar() -> None:
    assert trace(MATRIX, probes=1, generator=seeded()).stderr == math.inf


def test_numbers_do_not_depend_on_the_block() -> None:
    for estimator in (trace, frobenius):
        few = estimator(MATRIX, probes=20, block=3, generator=seeded())
        many = estimator(MATRIX, probes=20, block=20, generator=seeded())
        assert few.value == pytest.approx(many.value, rel=1e-12)
        assert few.stderr == pytest.approx(many.stderr, rel=1e-9)


def test_float32_sums_in_float64() -> None:
    A: LinearOperator = Diagonal(torch.full((500_000,), 0.1))
    value = trace(A, probes=2, generator=seeded()).value
    assert value == pytest.approx(500_000 * float(torch.tensor(0.1)), rel=1e-9)


def test_misuse() -> None:
    with pytest.raises(CurvescopeError, match="method must be one of 'hutchinson', 'xtrace'"):
        trace(MATRIX, method="hutch", generator=seeded())
    with pytest.raises(CurvescopeError, match="probes must be an integer of at least 4, got 2"):
        trace(MATRIX, probes=2, method="xtrace", generator=seeded())
    with pytest.raises(CurvescopeError, match="probes must be an integer of at least 6, got 5"):
        frobenius(MATRIX, probes=5, method="hutch++", generator=seeded())
    with pytest.raises(CurvescopeError, match=r"generator must be a torch\.Generator, got int"):
        trace(MATRIX, generator=0)  # type: ignore[arg-type]
    with pytest.raises(CurvescopeError, match="returned NaN or infinite"):
        trace(Diagonal(torch.tensor([1.0, float("nan")])), probes=1, generator=seeded())
