"""Algorithm 4 of TR against eigenvalues written out."""

from __future__ import annotations

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.operators.simple import Dense, Diagonal, Identity
from curvescope.spectra import exact_spectrum, normalized
from curvescope.spectra.normalization import NormalizedOperator
from tests.conformance import check_operator

F64 = torch.float64


def symmetric(n: int, seed: int) -> torch.Tensor:
    A = torch.randn(n, n, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return A + A.T + 3 * torch.eye(n, dtype=F64)


def test_the_operator_is_the_shifted_and_scaled_matrix(generator: torch.Generator) -> None:
    A = symmetric(12, 0)
    found = normalized(Dense(A), generator=generator)
    values = torch.linalg.eigvalsh(A)  # 32 steps exhaust 12 dimensions: the ends are exact
    low, high = float(values[0]), float(values[-1])
    delta = 0.05 * (high - low)
    assert found.interval == pytest.approx((low - delta, high + delta), rel=1e-10)
    c, d = sum(found.interval) / 2, (found.interval[1] - found.interval[0]) / 2
    check_operator(found.operator, (A - c * torch.eye(12, dtype=F64)) / d, rtol=1e-12)
    moved = exact_spectrum(found.operator).values
    assert moved.tolist() == pytest.approx(((values - c) / d).tolist(), rel=1e-10)
    torch.testing.assert_close(found.operator.restored(moved), values, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_the_spectrum_lies_inside(seed: int) -> None:
    A = symmetric(300, seed)
    found = normalized(Dense(A), generator=torch.Generator().manual_seed(seed))
    assert found.products == 32
    values = torch.linalg.eigvalsh(found.operator.dense())
    assert float(values.abs().max()) <= 1.0


def test_the_margin_is_the_share_of_the_width(generator: torch.Generator) -> None:
    A = Diagonal(torch.tensor([-1.0, 0.0, 1.0], dtype=F64))
    found = normalized(A, generator=generator, margin=0.5)
    assert found.interval == pytest.approx((-2.0, 2.0))
    found = normalized(A, generator=generator, margin=0.0)
    assert found.interval == pytest.approx((-1.0, 1.0))


def test_what_has_no_width_is_refused(generator: torch.Generator) -> None:
    A = 3.0 * Identity(5, dtype=F64, device="cpu")
    with pytest.raises(CurvescopeError, match="the spectrum must have some width, got the single"):
        normalized(A, generator=generator)
    with pytest.raises(CurvescopeError, match="half_width must be positive, got 0"):
        NormalizedOperator(A, 0.0, 0)
    with pytest.raises(CurvescopeError, match="needs a symmetric operator"):
        NormalizedOperator(Dense(torch.ones(2, 2).triu()), 0.0, 1.0)
    with pytest.raises(CurvescopeError, match="margin must be at least 0"):
        normalized(A, generator=generator, margin=-0.1)


def test_two_normalizations_are_told_apart() -> None:
    A = Diagonal(torch.tensor([1.0, 2.0]))
    same = NormalizedOperator(A, 0.5, 2.0)
    assert same.identity == NormalizedOperator(A, 0.5, 2.0).identity
    assert same.identity != NormalizedOperator(A, 0.5, 3.0).identity
