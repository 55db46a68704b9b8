"""Kronecker operators against ``torch.kron`` and dense eigendecompositions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import curvescope as cs
from curvescope.operators.kronecker import KroneckerFunction, KroneckerOperator
from tests.conformance import assert_relative, check_operator


def gram(n: int, seed: int, rank: int | None = None) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, rank or n + 2, generator=g, dtype=torch.float64)
    return X @ X.T


def test_battery() -> None:
    A, B = gram(3, 0), gram(4, 1)
    check_operator(KroneckerOperator(A, B, psd=True), torch.kron(A, B), rtol=1e-12)
    assert KroneckerOperator(A, B).symmetric


def test_factors_without_symmetry() -> None:
    g = torch.Generator().manual_seed(2)
    A = torch.randn(3, 3, generator=g, dtype=torch.float64)
    B = torch.randn(2, 2, generator=g, dtype=torch.float64)
    K = KroneckerOperator(A, B)
    assert not K.symmetric
    check_operator(K, torch.kron(A, B), rtol=1e-12)
    with pytest.raises(cs.CurvescopeError, match="eigenpairs need symmetric factors"):
        K.eigenvalues()


def test_row_major_flattening() -> None:
    """``(A ⊗ B) vec(V) = vec(A V Bᵀ)`` with ``vec(V)[i n + j] = V[i, j]`` (K.1)."""
    A, B = gram(3, 0), gram(5, 1)
    V = torch.randn(3, 5).double()
    ours = KroneckerOperator(A, B) @ V.reshape(-1)
    torch.testing.assert_close(ours.reshape(3, 5), A @ V @ B.T)


def test_all_eigenvalues_and_top_eigenvectors() -> None:
    A, B = gram(4, 0), gram(5, 1, rank=3)
    K = KroneckerOperator(A, B, psd=True)
    dense = torch.kron(A, B)
    expected = torch.linalg.eigvalsh(dense).flip(0)
    torch.testing.assert_close(K.eigenvalues(), expected, rtol=1e-12, atol=1e-12 * expected[0])
    top = K.top(7)
    torch.testing.assert_close(top.values, expected[:7])
    torch.testing.assert_close(dense @ top.vectors, top.vectors * top.values)
    torch.testing.assert_close(top.vectors.T @ top.vectors, torch.eye(7).double())
    alpha = torch.linalg.eigvalsh(A).flip(0)
    beta = torch.linalg.eigvalsh(B).flip(0)
    torch.testing.assert_close(alpha[top.first] * beta[top.second], top.values)
    with pytest.raises(cs.CurvescopeError, match="at most the dimension 20, got 21"):
        K.top(21)


def test_indefinite_factors() -> None:
    A, B = gram(3, 0) - 3 * torch.eye(3).double(), gram(3, 1) - 3 * torch.eye(3).double()
    K = KroneckerOperator(A, B)
    expected = torch.linalg.eigvalsh(torch.kron(A, B)).flip(0)
    torch.testing.assert_close(K.eigenvalues(), expected)
    torch.testing.assert_close(K.top(4).values, expected[:4])


def test_inverse_and_solve() -> None:
    A, B = gram(4, 0), gram(5, 1, rank=2)  # singular without damping
    K = KroneckerOperator(A, B, psd=True)
    damped = torch.kron(A, B) + 0.3 * torch.eye(20).double()
    check_operator(K.inverse(0.3), torch.linalg.inv(damped), rtol=1e-11)
    y = torch.randn(20, 2).double()
    assert_relative(K.solve(y, 0.3), torch.linalg.solve(damped, y), rtol=1e-11, what="solve")
    with pytest.raises(cs.CurvescopeError, match="too small to divide by; use a larger damping"):
        K.inverse(0.0)
    with pytest.raises(cs.CurvescopeError, match="damping must be at least 0"):
        K.inverse(-1.0)


def test_multiples_stay_kronecker_products() -> None:
    K = KroneckerOperator(gram(2, 0), gram(3, 1), psd=True)
    assert isinstance(2 * K, KroneckerOperator)
    assert (2 * K).psd
    assert not (-1 * K).psd
    torch.testing.assert_close((2 * K).dense(), 2 * K.dense())


def test_one_row_or_one_column() -> None:
    K = KroneckerOperator(torch.tensor([[2.0]]), torch.tensor([[3.0]]), psd=True)
    assert K.eigenvalues().tolist() == [6.0]
    assert K.solve(torch.tensor([12.0])).tolist() == [2.0]


@pytest.mark.parametrize(
    ("A", "B", "message"),
    [
        (torch.ones(2, 3), torch.eye(2), r"KroneckerOperator\(A\): needs a real square matrix"),
        (torch.eye(2), torch.ones(2, 2, 1), r"KroneckerOperator\(B\): needs a real square matrix"),
        (torch.eye(2), torch.eye(2).double(), "must share dtype and device"),
    ],
)
def test_refusals(A: Tensor, B: Tensor, message: str) -> None:
    with pytest.raises(cs.CurvescopeError, match=message):
        KroneckerOperator(A, B)


def test_entries_must_fit() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"needs entries \[2, 3\], got \[3, 2\]"):
        KroneckerFunction(torch.eye(2), torch.eye(3), torch.ones(3, 2))


@pytest.mark.parametrize("side", ["first", "second", "both"])
def test_a_diagonal_factor_is_as_good_as_the_matrix(side: str) -> None:
    g = torch.Generator().manual_seed(4)
    R = torch.randn(3, 3, generator=g).double()
    full, diagonal = R @ R.T, torch.rand(4, generator=g).double()
    diagonal[2] = 0.0
    other = torch.rand(3, generator=g).double()
    factors = {"first": (diagonal, full), "second": (full, diagonal), "both": (diagonal, other)}
    A, B = factors[side]
    K = KroneckerOperator(A, B, psd=True)
    dense = torch.kron(*(torch.diag(X) if X.ndim == 1 else X for X in (A, B)))
    check_operator(K, dense, rtol=1e-12)
    values = torch.linalg.eigvalsh(dense).flip(0)
    torch.testing.assert_close(K.eigenvalues(), values)
    top = K.top(5)
    torch.testing.assert_close(dense @ top.vectors, top.vectors * top.values)
    torch.testing.assert_close(top.vectors.T @ top.vectors, torch.eye(5).double())
    y = torch.randn(12, 2, generator=g).double()
    x = K.solve(y, damping=0.3)
    torch.testing.assert_close((dense + 0.3 * torch.eye(12).double()) @ x, y)
    check_operator(
        K.inverse(0.3), torch.linalg.inv(dense + 0.3 * torch.eye(12).double()), rtol=1e-10
    )
    numbers = (top.first.amax() + 1, top.second.amax() + 1)  # counted from the largest
    assert numbers[0] <= len(A)
    assert numbers[1] <= len(B)
    assert (int(top.first[0]), int(top.second[0])) == (0, 0)


def test_a_large_vocabulary_is_never_squared() -> None:
    V = 200_000  # a dense factor would take 160 GB
    counts = torch.arange(1, V + 1).float()
    K = KroneckerOperator(counts, torch.tensor([[2.0]]), psd=True)
    assert torch.equal(K @ torch.ones(V), 2 * counts)
    top = K.top(2)
    assert top.values.tolist() == [2.0 * V, 2.0 * (V - 1)]
    assert top.vectors.argmax(0).tolist() == [V - 1, V - 2]
    assert float(K.solve(counts, damping=0.0)[7]) == pytest.approx(0.5)
