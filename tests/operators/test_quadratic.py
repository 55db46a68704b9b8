"""Quadratic forms against products, and the diagonal that H shares with G."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import curvescope as cs
from tests.cases import BY_NAME, dense
from tests.conformance import random_block

MATRICES = {"hessian": cs.Hessian, "gauss_newton": cs.GaussNewton}
MATRICES["empirical_fisher"] = cs.EmpiricalFisher
every_case = pytest.mark.parametrize("name", BY_NAME)


@every_case
def test_quadratic_forms_are_those_of_the_dense_matrix(name: str) -> None:
    problem = BY_NAME[name].problem()
    V = random_block(problem.params.size, 5, torch.float64)
    for matrix, make in MATRICES.items():
        exact = (V * (dense(name, matrix) @ V)).sum(0)
        for keep in (False, True):
            A = make(problem, keep=keep)
            torch.testing.assert_close(A.quadratic(V), exact, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(A.quadratic(V[:, :1]), exact[:1], rtol=1e-10, atol=1e-12)


@every_case
def test_the_twin_has_the_same_diagonal(name: str) -> None:
    twin = cs.Hessian(BY_NAME[name].problem()).same_diagonal()
    exact = torch.diagonal(dense(name, "hessian"))
    torch.testing.assert_close(torch.diagonal(twin.dense()), exact, rtol=1e-9, atol=1e-11)


def network(activation: type[nn.Module]) -> cs.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 3)).double()
    X = torch.randn(8, 4, dtype=torch.float64)
    return cs.Problem(model, (X, torch.arange(8) % 3))


def test_only_piecewise_linear_networks_have_a_twin() -> None:
    H = cs.Hessian(network(nn.ReLU))
    assert H.same_diagonal() is not H
    assert H.same_diagonal().psd
    E = H - cs.GaussNewton(H.problem)
    assert float(torch.diagonal(E.dense()).abs().max()) == 0.0
    assert float(E.dense().abs().max()) > 1e-3
    smooth = cs.Hessian(network(nn.Tanh))
    assert smooth.same_diagonal() is smooth


def test_a_trace_needs_no_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    H = cs.Hessian(network(nn.ReLU))
    exact = float(torch.trace(H.dense()))
    H.same_diagonal()
    monkeypatch.setattr(torch.autograd, "grad", None)
    estimate = cs.trace(H, probes=16, generator=torch.Generator().manual_seed(0))
    assert abs(estimate.value - exact) <= 4 * estimate.stderr
    assert estimate.products == 16


def test_misuse() -> None:
    H = cs.Hessian(network(nn.ReLU))
    with pytest.raises(cs.CurvescopeError, match="quadratic"):
        H.quadratic(torch.ones(3, 2, dtype=torch.float64))
