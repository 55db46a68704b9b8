"""Lanczos: the identity with its residual, full depth against eigh, breakdown, blocks."""

from __future__ import annotations

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.operators.simple import Dense, Diagonal
from curvescope.spectra import Status, block_lanczos, lanczos
from tests.spectra.matrices import F64, hessian_like, rotated, seeded


def test_full_depth_equals_eigh() -> None:
    eigenvalues = hessian_like(120)
    T = lanczos(rotated(eigenvalues), 120, generator=seeded())
    torch.testing.assert_close(T.ritz()[0].flip(0), eigenvalues, atol=1e-10, rtol=0)


def test_tridiagonal_identity_with_its_residual() -> None:
    A = rotated(hessian_like(200))
    T = lanczos(A, 40, generator=seeded())
    assert T.basis is not None
    Q = T.basis[:, :40]
    right = Q @ T.matrix()
    right[:, -1] += T.betas[-1] * T.basis[:, 40]
    torch.testing.assert_close(A.dense() @ Q, right, atol=1e-12, rtol=0)
    torch.testing.assert_close(T.basis.T @ T.basis, torch.eye(41, dtype=F64), atol=1e-13, rtol=0)


@pytest.mark.parametrize("reorthogonalize", [True, False])
def test_ritz_residuals_are_those_of_the_vectors(reorthogonalize: bool) -> None:
    A = rotated(hessian_like(200))
    T = lanczos(A, 15, generator=seeded(), reorthogonalize=reorthogonalize)
    kept = lanczos(A, 15, generator=seeded())
    assert kept.basis is not None
    values, y = torch.linalg.eigh(kept.matrix())
    vectors = kept.basis[:, :15] @ y
    true = torch.linalg.vector_norm(A.dense() @ vectors - vectors * values, dim=0)
    torch.testing.assert_close(T.ritz()[1], true, atol=1e-9, rtol=0)


def test_without_reorthogonalization_agrees_until_convergence_then_shows_ghosts() -> None:
    A = rotated(hessian_like(200))
    slow = lanczos(A, 120, generator=seeded())
    fast = lanczos(A, 120, generator=seeded(), reorthogonalize=False)
    assert fast.basis is None
    torch.testing.assert_close(fast.alphas[:10], slow.alphas[:10], atol=1e-9, rtol=0)
    near_top = (fast.ritz()[0] - 10).abs() < 1e-6
    assert int(near_top.sum()) > 1, "a converged Ritz value should come back as a ghost"
    assert int(((slow.ritz()[0] - 10).abs() < 1e-6).sum()) == 1


def test_breakdown_is_relative_to_the_scale() -> None:
    for scale in (1e-12, 1.0, 1e12):
        values = scale * torch.tensor([1.0, 2.0, 3.0], dtype=F64).repeat(20)
        T = lanczos(rotated(values), 30, generator=seeded())
        assert T.status is Status.BREAKDOWN
        assert len(T.alphas) == 3
        torch.testing.assert_close(
            T.ritz()[0] / scale, torch.tensor([1.0, 2, 3], dtype=F64), atol=1e-10, rtol=0
        )


def test_more_steps_than_the_dimension() -> None:
    T = lanczos(rotated(hessian_like(30)), 100, generator=seeded())
    assert T.status is Status.BREAKDOWN
    assert len(T.alphas) == 30
    assert T.products == 30
    assert float(T.betas[-1]) == 0


def test_given_start() -> None:
    start = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    T = lanczos(Diagonal(torch.tensor([5.0, 6.0, 7.0], dtype=F64)), 2, start=start)
    assert T.status is Status.BREAKDOWN
    assert T.alphas.tolist() == [5.0]


def test_float32_basis_of_a_long_vector_is_orthonormal() -> None:
    entries = torch.linspace(-1, 3, 300_000) ** 3
    T = lanczos(Diagonal(entries), 12, generator=seeded())
    assert T.basis is not None
    basis = T.basis.double()
    torch.testing.assert_close(basis.T @ basis, torch.eye(13, dtype=F64), atol=3e-6, rtol=0)


def test_block_identity_and_full_depth() -> None:
    eigenvalues = hessian_like(90)
    A = rotated(eigenvalues)
    T = block_lanczos(A, 6, block=5, generator=seeded())
    assert T.basis.shape == (90, 30)
    assert T.residual.shape == (90, 5)
    right = T.basis @ T.matrix + T.residual @ T.coupling
    torch.testing.assert_close(A.dense() @ T.basis, right, atol=1e-12, rtol=0)
    # block tridiagonal: nothing beyond the neighboring blocks
    assert float(T.matrix[:5, 10:].abs().max()) < 1e-12
    full = block_lanczos(A, 18, block=5, generator=seeded())
    values = torch.linalg.eigvalsh(full.matrix).flip(0)
    torch.testing.assert_close(values, eigenvalues, atol=1e-10, rtol=0)


def test_block_shrinks_to_an_invariant_subspace() -> None:
    values = torch.cat([torch.tensor([3.0, 3, 3, 1], dtype=F64), torch.zeros(46, dtype=F64)])
    T = block_lanczos(rotated(values), 10, block=2, generator=seeded())
    assert T.status is Status.BREAKDOWN
    expected = torch.tensor([0.0, 0, 1, 3, 3], dtype=F64)
    torch.testing.assert_close(torch.linalg.eigvalsh(T.matrix), expected, atol=1e-10, rtol=0)


def test_misuse() -> None:
    A = Diagonal(torch.ones(3, dtype=F64))
    with pytest.raises(CurvescopeError, match=r"generator must be a torch\.Generator"):
        lanczos(A, 3)
    with pytest.raises(CurvescopeError, match="steps must be an integer of at least 1, got 0"):
        lanczos(A, 0, generator=seeded())
    with pytest.raises(CurvescopeError, match="start must be one vector that is not zero"):
        lanczos(A, 2, start=torch.zeros(3, dtype=F64))
    with pytest.raises(CurvescopeError, match="needs a symmetric operator"):
        lanczos(Dense(torch.triu(torch.ones(3, 3))), 2, generator=seeded())
    with pytest.raises(CurvescopeError, match="needs an operator, got Tensor"):
        lanczos(torch.eye(3), 2, generator=seeded())  # type: ignore[arg-type]
    with pytest.raises(CurvescopeError, match="returned NaN or infinite"):
        lanczos(Diagonal(torch.tensor([1.0, float("nan")])), 2, generator=seeded())
    with pytest.raises(CurvescopeError, match="unknown keyword 'reorthogonalise'"):
        lanczos(A, 2, generator=seeded(), reorthogonalise=True)  # type: ignore[call-arg]
