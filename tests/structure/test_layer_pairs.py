"""Eigenpairs of layer blocks through their shorter form, against ``eigh``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope.operators.layer import LayerRoot
from curvescope.structure.layer_pairs import _RowGram, layer_eigenpairs
from tests.cases import classes, convert


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def wide(samples: int, dtype: torch.dtype = torch.float64) -> cs.Problem:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)).to(dtype)
    X = torch.randn(samples, 12) * torch.logspace(0, -2, 12)
    return cs.Problem(model, (X.to(dtype), torch.arange(samples) % 3))


@pytest.mark.parametrize("samples", [12, 200])  # 24 rows and 400 for 120 weights
@pytest.mark.parametrize("layer", ["0", "0.weight"])
def test_both_forms(samples: int, layer: str) -> None:
    block = cs.Hessian(wide(samples)).block(layer)
    pairs = layer_eigenpairs(block, 8, tol=1e-8, generator=generator())
    values, vectors = torch.linalg.eigh(block.dense())
    assert pairs.converged
    torch.testing.assert_close(pairs.values, values.flip(0)[:8])
    residuals = (block @ pairs.vectors - pairs.vectors * pairs.values).norm(dim=0)
    assert bool((residuals <= 1e-8 * pairs.values).all())
    assert bool((residuals <= pairs.residuals * (1 + 1e-6) + 1e-14).all())
    torch.testing.assert_close(pairs.vectors.T @ pairs.vectors, torch.eye(8).double())
    overlap = (vectors.flip(1)[:, :8].T @ pairs.vectors).square().sum() / 8
    assert float(overlap) == pytest.approx(1.0)


def test_eigenvalues_far_apart() -> None:
    """Eigenvalues that differ by more than an order of magnitude, each to its own tolerance."""
    block = cs.Hessian(wide(20)).block("0.weight")
    pairs = layer_eigenpairs(block, 30, tol=1e-6, generator=generator())
    assert float(pairs.values[0] / pairs.values[-1]) > 16
    residuals = (block @ pairs.vectors - pairs.vectors * pairs.values).norm(dim=0)
    assert bool((residuals <= 1e-6 * pairs.values).all())


def test_float32_and_convolutions() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))
    block = cs.Hessian(cs.Problem(model, convert(classes(2, 6, 6), torch.float32))).block("0")
    pairs = layer_eigenpairs(block, 5, tol=1e-4, generator=generator())
    expected = torch.linalg.eigvalsh(block.dense().double()).flip(0)[:5]
    torch.testing.assert_close(pairs.values.double(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_residuals_of_rounding_take_no_product_for_each_pair(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(400, 60), nn.ReLU(), nn.Linear(60, 10))
    X, y = torch.randn(60, 400) * torch.linspace(3, 0.1, 400), torch.arange(60) % 10
    X += 2 * torch.randn(10, 400)[y]
    block = cs.Hessian(cs.Problem(model, (X, y))).block("0.weight")
    pairs = layer_eigenpairs(block, 25, tol=1e-4, generator=generator())
    assert pairs.converged
    assert pairs.missed <= 1e-3
    assert pairs.products < 140  # two for each of 25 pairs would make it 160 or more
    exact = cs.Hessian(cs.Problem(model.double(), (X.double(), y))).block("0.weight")
    V, values = pairs.vectors.double(), pairs.values.double()
    assert bool(((exact @ V - V * values).norm(dim=0) <= pairs.tolerance).all())


def test_more_pairs_than_rows() -> None:
    block = cs.Hessian(wide(3)).block("0.weight")  # 6 rows: the other eigenvalues are zero
    pairs = layer_eigenpairs(block, 8, tol=1e-8, generator=generator())
    expected = torch.linalg.eigvalsh(block.dense()).flip(0)[:8]
    torch.testing.assert_close(pairs.values, expected, rtol=1e-8, atol=1e-10)


def test_a_block_without_closed_form() -> None:
    model = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)).double()
    block = cs.Hessian(
        cs.Problem(model, (torch.randn(10, 12).double(), torch.arange(10) % 3))
    ).block("0")
    pairs = layer_eigenpairs(block, 3, tol=1e-8, generator=generator())
    expected = torch.linalg.eigvalsh(block.dense()).flip(0)[:3]
    torch.testing.assert_close(pairs.values, expected, rtol=1e-7, atol=0)


def test_refusals() -> None:
    block = cs.Hessian(wide(5)).block("0")
    with pytest.raises(cs.CurvescopeError, match="k must be an integer of at least 1, got 0"):
        layer_eigenpairs(block, 0, generator=generator())
    with pytest.raises(cs.CurvescopeError, match=r"must be a torch\.Generator, got NoneType"):
        layer_eigenpairs(block, 2, generator=None)


@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_the_vectors_come_from_memory_or_from_products(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same vectors, with and without what the search remembers."""
    monkeypatch.setattr("curvescope.structure.layer_pairs.MEMORY", memory)
    asked: list[int] = []
    product = LayerRoot._rmatmat

    def counted(self: LayerRoot, Y: torch.Tensor) -> torch.Tensor:
        asked.append(Y.shape[1])
        return product(self, Y)

    monkeypatch.setattr(LayerRoot, "_rmatmat", counted)
    block = cs.Hessian(wide(20)).block("0.weight")
    pairs = layer_eigenpairs(block, 7, tol=1e-8, generator=generator())
    assert (7 in asked) == (memory == 0)
    residuals = (block @ pairs.vectors - pairs.vectors * pairs.values).norm(dim=0)
    assert bool((residuals <= 1e-8 * pairs.values).all())


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_remembered_need_not_be_orthonormal(turned: bool) -> None:
    root = cs.Hessian(wide(20)).block("0.weight").root()
    assert root is not None
    Q = torch.linalg.qr(torch.randn(40, 6, generator=generator()).double()).Q
    if turned:
        Q = Q @ torch.randn(6, 6, generator=generator()).double()
    gram = _RowGram(root)
    gram @ Q
    inside = Q @ torch.randn(6, 2, generator=generator()).double()
    inside /= inside.norm(dim=0)
    torch.testing.assert_close(gram.pulled(inside), root.dense().T @ inside)
    outside = torch.randn(40, 2, generator=generator()).double()
    torch.testing.assert_close(gram.pulled(outside), root.dense().T @ outside)
