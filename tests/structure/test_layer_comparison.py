"""A layer's Hessian beside its Kronecker product, against dense matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope.errors import CurvescopeError
from curvescope.structure import compare_layer, kronecker_factors


def subject() -> cs.Problem:
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g).double())
    X = torch.randn(30, 4, generator=g).double()
    return cs.Problem(model, (X, torch.arange(30) % 3))


def test_against_dense_matrices() -> None:
    problem = subject()
    factors = kronecker_factors(problem, layers=["0"])["0"]
    block = cs.Hessian(problem).block("0.weight")
    pairs = cs.eigenpairs(block, 6, generator=torch.Generator().manual_seed(1))
    compared = compare_layer(factors, pairs, rows=3)

    values, vectors = torch.linalg.eigh(block.dense())
    h = vectors.flip(1)[:, :6]
    M, A = factors.output_hessian, factors.autocorrelation
    kron_values, kron_vectors = torch.linalg.eigh(torch.kron(M, A))
    g = kron_vectors.flip(1)[:, :6]
    torch.testing.assert_close(compared.true, values.flip(0)[:6], rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(compared.approximate, kron_values.flip(0)[:6])
    expected = torch.stack([(h[:, :k].T @ g[:, :k]).square().sum() / k for k in range(1, 7)])
    torch.testing.assert_close(compared.overlap, expected, atol=1e-3, rtol=0)
    svd = torch.stack([torch.linalg.svdvals(column.reshape(5, 4)) for column in h.T])
    torch.testing.assert_close(compared.singular_values, svd, atol=1e-3, rtol=0)
    torch.testing.assert_close(compared.ratio, svd[:, 0], atol=1e-3, rtol=0)
    torch.testing.assert_close(compared.output_eigenvalues, torch.linalg.eigvalsh(M).flip(0))
    torch.testing.assert_close(compared.input_eigenvalues, torch.linalg.eigvalsh(A).flip(0))
    u = torch.linalg.eigh(M)[1].flip(1)[:, :3]
    shares = torch.einsum("kmn,mr->rkn", h.T.reshape(6, 5, 4), u).square().sum(-1)
    torch.testing.assert_close(
        compared.correspondences["true output"].double(), shares, atol=1e-3, rtol=0
    )
    assert {shape.shape for shape in compared.correspondences.values()} == {(3, 6)}
    assert (compared.outputs, compared.inputs, compared.products) == (5, 4, pairs.products)


def test_what_does_not_fit_is_refused() -> None:
    problem = subject()
    pairs = cs.eigenpairs(
        cs.Hessian(problem).block("0.weight"), 2, generator=torch.Generator().manual_seed(1)
    )
    with pytest.raises(CurvescopeError, match="eigenvectors of the layer's weight, of 15 entries"):
        compare_layer(kronecker_factors(problem, layers=["2"])["2"], pairs)
    with pytest.raises(CurvescopeError, match="without the bias"):
        compare_layer(replace(kronecker_factors(problem, layers=["0"])["0"], bias=True), pairs)
