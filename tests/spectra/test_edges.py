"""Every estimator on every awkward operator: the right answer or a clear status, never NaN."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from curvescope.spectra import (
    Status,
    block_lanczos,
    diagonal,
    eigenpairs,
    exact_spectrum,
    frobenius,
    kpm,
    lanczos,
    logdet,
    rank_degeneracy,
    spectral_measure,
    subspace_iteration,
    trace,
)
from tests.spectra.matrices import EDGE_CASES, F64, hessian_like, rotated, seeded


def assert_no_nan(result: Any) -> None:
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(value, Tensor):
            assert not bool(torch.isnan(value).any()), field.name
        elif isinstance(value, float):
            assert not math.isnan(value), field.name
        elif dataclasses.is_dataclass(value):
            assert_no_nan(value)


@pytest.fixture(params=EDGE_CASES)
def eigenvalues(request: pytest.FixtureRequest) -> Tensor:
    return EDGE_CASES[request.param]


def scale_of(eigenvalues: Tensor) -> float:
    return float(eigenvalues.abs().max()) or 1.0


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize("block", [1, 4])
def test_eigenpairs(eigenvalues: Tensor, which: str, block: int) -> None:
    n, scale = len(eigenvalues), scale_of(eigenvalues)
    A = rotated(eigenvalues)
    for k in sorted({1, min(3, n), n}):
        pairs = eigenpairs(A, k, which=which, block=block, generator=seeded())
        assert_no_nan(pairs)
        assert pairs.converged
        assert pairs.status is Status.CONVERGED
        good = {"largest": eigenvalues, "smallest": -eigenvalues}.get(which, eigenvalues.abs())
        expected = good.sort(descending=True).values[:k]
        found = {"largest": pairs.values, "smallest": -pairs.values}.get(which, pairs.values.abs())
        torch.testing.assert_close(found / scale, expected / scale, atol=1e-5, rtol=0)
        assert pairs.vectors.shape == (n, k)
        assert pairs.products <= 2 * n + 2


def test_all_pairs_of_a_repeated_spectrum_are_its_eigendecomposition() -> None:
    A = rotated(EDGE_CASES["repeated"])
    pairs = eigenpairs(A, 15, tol=1e-10, generator=seeded())
    rebuilt = (pairs.vectors * pairs.values) @ pairs.vectors.T
    torch.testing.assert_close(rebuilt, A.dense(), atol=1e-10, rtol=0)


def test_subspace_iteration(eigenvalues: Tensor) -> None:
    k = min(3, len(eigenvalues))
    pairs = subspace_iteration(rotated(eigenvalues), k, iterations=60, generator=seeded())
    assert_no_nan(pairs)
    scale = scale_of(eigenvalues)
    top = float(eigenvalues.abs().max())
    assert float(pairs.values.abs().max()) / scale == pytest.approx(top / scale, abs=1e-2)


@pytest.mark.parametrize("reorthogonalize", [True, False])
def test_lanczos(eigenvalues: Tensor, reorthogonalize: bool) -> None:
    scale = scale_of(eigenvalues)
    A = rotated(eigenvalues)
    T = lanczos(A, 50, generator=seeded(), reorthogonalize=reorthogonalize)
    assert_no_nan(T)
    distinct = eigenvalues.unique()
    if reorthogonalize:
        assert T.status is Status.BREAKDOWN
        assert len(T.alphas) <= len(eigenvalues)
        nearest = (T.ritz()[0][:, None] - distinct).abs().min(1).values
        assert float(nearest.max()) / scale < 1e-4
    ends = torch.stack([T.ritz()[0][0], T.ritz()[0][-1]]) / scale
    expected = torch.stack([distinct[0], distinct[-1]]) / scale
    torch.testing.assert_close(ends, expected, atol=1e-4, rtol=0)
    assert_no_nan(block_lanczos(A, 20, block=3, generator=seeded()))


def test_measure_and_its_views(eigenvalues: Tensor) -> None:
    n, scale = len(eigenvalues), scale_of(eigenvalues)
    measure = spectral_measure(rotated(eigenvalues), steps=40, probes=3, generator=seeded())
    assert_no_nan(measure)
    assert measure.moment(0).value == pytest.approx(1.0, abs=1e-9)
    if n > 1:
        mean = float(eigenvalues.mean())
        moment = measure.moment(1)
        # three probes: a t of two degrees of freedom, and exact for multiples of the identity
        assert abs(moment.value - mean) <= 20 * moment.stderr + 1e-9 * scale
    for curve in (measure.density(128), measure.log_density(1e-8, 128)):
        assert_no_nan(curve)
        assert curve.mass == pytest.approx(1.0, abs=1e-3)
    assert_no_nan(rank_degeneracy(measure))
    assert float(measure.cdf(torch.tensor([10 * scale], dtype=F64))) == pytest.approx(1.0)
    moments = kpm(rotated(eigenvalues), degree=20, generator=seeded())
    assert_no_nan(moments)
    assert_no_nan(moments.density(64))


@pytest.mark.parametrize("probes", [12, 30])
def test_traces(eigenvalues: Tensor, probes: int) -> None:
    A, scale = rotated(eigenvalues), scale_of(eigenvalues)
    total, norm = float(eigenvalues.sum()), float(eigenvalues.div(scale).norm()) * scale
    for method in ("hutchinson", "xtrace"):
        estimate = trace(A, probes=probes, method=method, generator=seeded())
        assert_no_nan(estimate)
        assert abs(estimate.value - total) <= 8 * estimate.stderr + 1e-9 * scale
    for method in ("hutchinson", "hutch++"):
        estimate = frobenius(A, probes=max(probes, 6), method=method, generator=seeded())
        assert_no_nan(estimate)
        assert abs(estimate.value - norm) <= 8 * estimate.stderr + 1e-9 * scale
    assert_no_nan(diagonal(A, probes=probes, generator=seeded()))


def test_logdet_and_exact(eigenvalues: Tensor) -> None:
    scale = scale_of(eigenvalues)
    A = rotated(eigenvalues)
    estimate = logdet(A, damping=4 * scale, probes=4, steps=40, generator=seeded())
    assert_no_nan(estimate)
    exact = float(torch.log(eigenvalues + 4 * scale).sum())
    assert abs(estimate.value - exact) <= 10 * estimate.stderr + 1e-9 * max(1.0, abs(exact))
    spectrum = exact_spectrum(A)
    ordered = eigenvalues.sort().values
    torch.testing.assert_close(spectrum.values / scale, ordered / scale, atol=1e-10, rtol=0)


def test_small_numbers_in_float32() -> None:
    """Squares of entries below 1e-19 leave float32; norms are taken in float64."""
    values = 1e-25 * hessian_like(60, torch.float32)
    A = rotated(values)
    for block in (1, 3):
        pairs = eigenpairs(A, 5, generator=seeded(), block=block)
        assert pairs.converged
        torch.testing.assert_close(pairs.values * 1e25, values[:5] * 1e25, atol=1e-3, rtol=0)
    measure = spectral_measure(A, steps=20, generator=seeded())
    assert float(measure.nodes.max()) == pytest.approx(1e-24, rel=1e-4)


def test_one_dimension_in_float32() -> None:
    A = rotated(torch.tensor([2.5]))
    assert eigenpairs(A, 1, generator=seeded()).values.tolist() == [2.5]
    assert trace(A, generator=seeded()).value == 2.5
    assert spectral_measure(A, generator=seeded()).nodes.tolist() == [[2.5]]
    assert lanczos(A, 4, generator=seeded()).alphas.tolist() == [2.5]


def test_zero_dimensional_operators_are_refused() -> None:
    from curvescope.errors import CurvescopeError
    from curvescope.operators.simple import Diagonal

    empty = Diagonal(torch.empty(0, dtype=F64))
    with pytest.raises(CurvescopeError, match="needs an operator of positive dimension"):
        trace(empty, generator=seeded())
