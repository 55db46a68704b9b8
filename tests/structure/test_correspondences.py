"""Matricized eigenvectors: definitions entry by entry, and the exact pattern of a product."""

from __future__ import annotations

import pytest
import torch

import curvescope as cs
from curvescope.operators.kronecker import KroneckerOperator
from curvescope.structure.correspondences import correspondence, matricize, singular_structure
from tests.operators.test_kronecker import gram


def test_matricize_follows_the_weight() -> None:
    weight = torch.randn(4, 2, 3, 3)
    (matrix,) = matricize(weight.flatten(), 4)
    torch.testing.assert_close(matrix, weight.flatten(1))


def test_correspondence_entry_by_entry() -> None:
    m, n, k = 3, 4, 5
    g = torch.Generator().manual_seed(0)
    H = torch.randn(m * n, k, generator=g).double()
    V = torch.linalg.qr(torch.randn(n, n, generator=g).double())[0]
    U = torch.linalg.qr(torch.randn(m, m, generator=g).double())[0]
    inputs, outputs = (
        correspondence(H, V, side="input").matrix,
        correspondence(H, U, side="output").matrix,
    )
    for j in range(k):
        mat = H[:, j].reshape(m, n)
        for i in range(n):
            assert float(inputs[i, j]) == pytest.approx(float((mat @ V[:, i]).norm() ** 2))
        for i in range(m):
            assert float(outputs[i, j]) == pytest.approx(float((mat.T @ U[:, i]).norm() ** 2))
    torch.testing.assert_close(inputs.sum(0), H.square().sum(0))  # a whole basis


def test_a_kronecker_product_corresponds_perfectly() -> None:
    A, B = gram(3, 0), gram(4, 1)
    pairs = KroneckerOperator(A, B, psd=True).top(6)
    for side, factor, index in (("input", B, pairs.second), ("output", A, pairs.first)):
        basis = torch.linalg.eigh(factor)[1].flip(1)
        matrix = correspondence(pairs, basis, side=side).matrix
        expected = torch.nn.functional.one_hot(index, len(factor)).T.double()
        torch.testing.assert_close(matrix, expected)
    structure = singular_structure(pairs, 3, keep=2)
    torch.testing.assert_close(structure.ratio, torch.ones(6).double())
    torch.testing.assert_close(structure.values[:, 1], torch.zeros(6).double(), atol=1e-12, rtol=0)


def test_singular_values() -> None:
    h = torch.diag(torch.tensor([3.0, 4.0])).flatten()[:, None]
    structure = singular_structure(h, 2)
    assert structure.values.tolist() == [[4.0, 3.0]]
    assert float(structure.ratio) == pytest.approx(0.8)
    assert singular_structure(torch.ones(5, 1), 1).ratio.tolist() == [1.0]  # one output


def test_refusals() -> None:
    with pytest.raises(cs.CurvescopeError, match="take the block of the weight alone"):
        matricize(torch.ones(7, 1), 2)
    with pytest.raises(cs.CurvescopeError, match="side must be one of 'input', 'output'"):
        correspondence(torch.ones(6, 1), torch.eye(2), side="left")
    with pytest.raises(cs.CurvescopeError, match="columns of the input dimension"):
        correspondence(torch.ones(6, 1), torch.eye(4), side="input")
