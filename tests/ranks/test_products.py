"""Products, gradients and Gram forms of data on several ranks against one process."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.gram import dual_of
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.ranks import Traffic, traffic
from tests.cases import CASES
from tests.ranks.processes import on_ranks
from tests.ranks.shards import Comparison, agreeing, block

pytestmark = pytest.mark.ranks

NAMES = [case.name for case in CASES if not case.per_batch]
THOROUGH = [
    "cross_entropy", "cross_entropy-ignored-batch", "mse", "callable-huber", "tied-embedding",
    "conv-stride-padding", "batch-norm-eval", "batch-norm-train",
]  # fmt: skip


def _every_case(rank: int, size: int) -> Any:
    compared = Comparison(rank, size)
    for name in NAMES:
        shared = compared.begin(name)
        X = block(shared, 2)
        compared.check("value", Problem.value)
        compared.check("gradient", Problem.gradient)
        compared.check("H", lambda problem, X=X: Hessian(problem) @ X)
    return compared.outcome


def _thorough(rank: int, size: int) -> Any:
    compared = Comparison(rank, size)
    for name in THOROUGH:
        shared = compared.begin(name)
        _strategies(compared, shared)
        _layers(compared, shared)
        compared.check("identity", lambda problem: (problem.identity, problem.identity_in_order))
    return compared.outcome


def _strategies(compared: Comparison, shared: Problem) -> None:
    X = block(shared, 3)
    for kind in (Hessian, GaussNewton):
        for keep in (True, False):

            def products(problem: Problem, kind: Any = kind, keep: bool = keep) -> list[Tensor]:
                A = kind(problem, keep=keep)
                return [A @ X[:, :1], A @ X, A.quadratic(X)]

            compared.check(f"{kind.__name__} keep={keep}", products)
    compared.check("empirical Fisher", lambda problem: EmpiricalFisher(problem) @ X)
    if shared.loss.closed_form:
        compared.check("drawn Fisher", lambda problem: _drawn(problem) @ X)
    if shared.mode == "eval" and dual_of(GaussNewton(shared)):
        compared.check("Gram form", _gram_values)


def _drawn(problem: Problem) -> MonteCarloFisher:
    return MonteCarloFisher(problem, samples=2, generator=torch.Generator().manual_seed(3))


def _gram_values(problem: Problem) -> list[Tensor]:
    dual: Any = dual_of(GaussNewton(problem))
    return [torch.linalg.eigvalsh(dual.matrix()), dual.diagonal()]


def _layers(compared: Comparison, shared: Problem) -> None:
    for layer in shared.params.layers:
        for keep in (True, False):

            def product(problem: Problem, layer: str = layer, keep: bool = keep) -> list[Tensor]:
                A = GaussNewton(problem, keep=keep).block(layer)
                X = torch.eye(A.shape[0], dtype=problem.dtype)[:, :20]
                root = A.root()
                return [A @ X] if root is None else [A @ X, root.T @ (root @ X)]

            compared.check(f"{layer} keep={keep}", product)


def _traffic(rank: int, size: int) -> None:
    shared = Comparison(rank, size).begin("cross_entropy")
    X, group = block(shared, 3), shared.group
    for keep in (True, False):
        H = Hessian(shared, keep=keep)
        H @ X  # the first one also exchanges the weight of all terms
        before = copy(group.traffic)
        H @ X
        assert group.traffic.since(before) == Traffic(1, traffic.all_reduce(size, X.nbytes))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_products_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    agreeing(on_ranks(size, tmp_path, _thorough))


def test_every_case_on_two_ranks(tmp_path: Path) -> None:
    agreeing(on_ranks(2, tmp_path, _every_case))


def test_one_collective_for_a_block_of_products(tmp_path: Path) -> None:
    assert on_ranks(3, tmp_path, _traffic) == [None] * 3
