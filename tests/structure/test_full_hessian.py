"""DH App. B: the full output Hessian by its definition, and the eigenpairs made from it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope.structure.full_hessian import full_hessian_approximation, full_output_hessian
from curvescope.structure.overlaps import compare_eigenpairs
from tests.cases import classes, convert


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)
    ).double()


def test_full_output_hessian_by_definition() -> None:
    model, data = mlp(), convert(classes(4), torch.float64)
    ours = full_output_hessian(cs.Problem(model, data))
    assert ours.names == ("0", "2", "4")
    assert ours.outputs == (5, 4, 3)
    X = torch.cat([x for x, _ in data])
    expected = torch.zeros(12, 12).double()
    for x in X:
        outputs = [model[0](x)]
        outputs.append(model[2](torch.relu(outputs[0])))
        outputs.append(model[4](torch.relu(outputs[1])))
        rows = [torch.cat(torch.autograd.grad(z, outputs, retain_graph=True)) for z in outputs[-1]]
        G = torch.stack(rows)
        p = torch.softmax(outputs[-1].detach(), 0)
        expected += G.T @ (torch.diag(p) - torch.outer(p, p)) @ G / len(X)
    torch.testing.assert_close(ours.matrix, expected)
    torch.testing.assert_close(ours.mean_inputs[1], torch.relu(model[0](X)).mean(0).detach())
    part = full_output_hessian(cs.Problem(model, data), layers=["0", "4"])
    keep = [*range(5), *range(9, 12)]
    torch.testing.assert_close(part.matrix, expected[keep][:, keep])


def test_vectors_follow_the_flat_parameters() -> None:
    model, data = mlp(), convert(classes(4), torch.float64)
    problem = cs.Problem(model, data)
    full = full_output_hessian(problem)
    sigma, u = torch.linalg.eigh(full.matrix)
    ours = full_hessian_approximation(problem, 3)
    columns = []
    for i in range(1, 4):
        u1, u2, u3 = u[:, -i].split([5, 4, 3])
        x1, x2, x3 = full.mean_inputs
        parts = [torch.kron(u1, x1), u1, torch.kron(u2, x2), torch.kron(u3, x3), u3]  # eq. 49
        columns.append(torch.cat(parts))
        expected = sigma[-i] * columns[-1].square().sum()  # eq. 51
        torch.testing.assert_close(ours.values[i - 1], expected)
    torch.testing.assert_close(ours.output_values, sigma.flip(0)[:3])
    W = torch.stack(columns, 1)
    torch.testing.assert_close(ours.vectors.T @ ours.vectors, torch.eye(3).double())
    for k in range(1, 4):  # Gram–Schmidt keeps every leading span
        basis = ours.vectors[:, :k]
        torch.testing.assert_close(basis @ (basis.T @ W[:, :k]), W[:, :k])


def test_exact_for_one_layer_and_one_input() -> None:
    """``H = M ⊗ x xᵀ`` has the eigenpairs that the approximation builds."""
    x = torch.randn(1, 4).double().expand(6, 4)
    problem = cs.Problem(nn.Linear(4, 3).double(), (x, torch.tensor([0, 1, 2, 0, 1, 2])))
    ours = full_hessian_approximation(problem, 2)
    values, vectors = torch.linalg.eigh(cs.Hessian(problem).dense())
    torch.testing.assert_close(ours.values, values.flip(0)[:2])
    overlaps = (vectors.flip(1)[:, :2].T @ ours.vectors).square().sum() / 2
    assert float(overlaps) == pytest.approx(1.0)


def test_finds_the_top_eigenspace_of_positive_inputs() -> None:
    """Inputs close to their mean: the regime of the approximation."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)).double()
    X = 1 + 0.2 * torch.randn(60, 20).double()
    problem = cs.Problem(model, (X, torch.arange(60) % 4))
    ours = full_hessian_approximation(problem, 3)
    true = cs.eigenpairs(cs.GaussNewton(problem), 3, generator=torch.Generator().manual_seed(0))
    result = compare_eigenpairs(true, ours)
    assert float(result.overlap[-1]) > 0.9
    torch.testing.assert_close(result.approximate, result.true, rtol=0.3, atol=0)


def test_refusals() -> None:
    conv = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 3)).double()
    problem = cs.Problem(conv, convert(classes(2, 6, 6), torch.float64))
    with pytest.raises(cs.CurvescopeError, match=r"'0' must be applied once .* got Conv2d at 16"):
        full_output_hessian(problem)
    assert full_output_hessian(problem, layers="2").outputs == (3,)
    plain = cs.Problem(mlp(), convert(classes(4), torch.float64))
    with pytest.raises(cs.CurvescopeError, match="at most the 12 outputs of all layers, got 13"):
        full_hessian_approximation(plain, 13)
