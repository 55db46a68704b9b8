"""Subspace overlap against principal angles, and over pairs of models."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import scipy.linalg
import torch
from torch import Tensor

import curvescope as cs
from curvescope.structure.overlaps import compare_eigenpairs, overlap, pairwise_overlap


def orthonormal(d: int, k: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, k, generator=g, dtype=torch.float64))[0]


def test_every_dimension_against_principal_angles() -> None:
    U, V = orthonormal(12, 6, 0), orthonormal(12, 5, 1)
    ours = overlap(U, V)
    assert ours.shape == (5,)
    for k in range(1, 6):
        angles = scipy.linalg.subspace_angles(U[:, :k].numpy(), V[:, :k].numpy())
        assert float(ours[k - 1]) == pytest.approx((torch.tensor(angles).cos() ** 2).mean().item())


def test_known_values() -> None:
    U = orthonormal(8, 8, 0)
    torch.testing.assert_close(overlap(U, U), torch.ones(8).double())
    torch.testing.assert_close(overlap(U, U.flip(1))[[0, 3, 7]], torch.tensor([0, 0, 1.0]).double())


def test_random_subspaces_overlap_by_k_over_d() -> None:
    d, k = 400, 40
    curves = torch.stack(
        [overlap(orthonormal(d, k, 2 * i), orthonormal(d, k, 2 * i + 1)) for i in range(20)]
    )
    error = curves[:, -1].std() / 20**0.5
    assert abs(float(curves[:, -1].mean()) - k / d) <= 4 * float(error)


def test_pairs_of_models() -> None:
    models = [orthonormal(10, 4, s) for s in range(4)]
    result = pairwise_overlap([SimpleNamespace(values=None, vectors=U) for U in models])
    expected = torch.stack(
        [overlap(models[i], models[j]) for i in range(4) for j in range(i + 1, 4)]
    )
    torch.testing.assert_close(result.curves, expected)
    torch.testing.assert_close(result.mean, expected.mean(0))
    torch.testing.assert_close(result.std, expected.std(0))
    assert result.peak == int(expected.mean(0).argmax()) + 1
    assert pairwise_overlap(models[:2]).std.tolist() == [0.0] * 4


def test_comparison_of_eigenpairs() -> None:
    U, V = orthonormal(6, 3, 0), orthonormal(6, 4, 1)
    true = SimpleNamespace(values=torch.tensor([3.0, 2.0, 1.0]), vectors=U)
    other = SimpleNamespace(values=torch.tensor([4.0, 3.0, 2.0, 1.0]), vectors=V)
    result = compare_eigenpairs(true, other)
    assert result.true.tolist() == [3.0, 2.0, 1.0]
    assert result.approximate.tolist() == [4.0, 3.0, 2.0]
    torch.testing.assert_close(result.overlap, overlap(U, V))


def test_refusals() -> None:
    U = orthonormal(6, 3, 0)
    with pytest.raises(cs.CurvescopeError, match=r"overlap\(V\): the columns must be orthonormal"):
        overlap(U, 2 * U)
    with pytest.raises(cs.CurvescopeError, match="columns must have one length, got 6 and 5"):
        overlap(U, orthonormal(5, 3, 0))
    with pytest.raises(
        cs.CurvescopeError, match=r"needs columns \[d, K\], got torch.float64 \[6\]"
    ):
        overlap(U[:, 0], U)
    with pytest.raises(cs.CurvescopeError, match="at least two models, got 1"):
        pairwise_overlap([U])
