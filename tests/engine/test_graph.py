"""Both engines over all cases: the tape where it can be used, autograd graphs everywhere."""

from __future__ import annotations

import pytest
import torch

import curvescope as cs
from curvescope.engine.engine import Engine
from curvescope.engine.matrix import DEPTHS
from tests.cases import BY_NAME, CASES, dense
from tests.conformance import check_products
from tests.tolerances import EXACT

# What only the universal engine takes: activations that are computed again in the backward pass.
NEEDS_GRAPHS = {"checkpoint"}
# Models on which torch's own double backward is wrong; the tape takes the operation apart.
WRONG_IN_TORCH = {"weight-norm"}

OPERATORS = {
    "hessian": cs.Hessian,
    "gauss_newton": cs.GaussNewton,
    "empirical_fisher": cs.EmpiricalFisher,
}


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in WRONG_IN_TORCH])
def test_graph_engine_is_exact(name: str) -> None:
    problem = BY_NAME[name].problem()
    problem.companion(Engine)._linearizer._why.update(dict.fromkeys(DEPTHS, "asked for"))
    for matrix, make in OPERATORS.items():
        check_products(make(problem), dense(name, matrix), rtol=EXACT[torch.float64])
    E = cs.Hessian(problem) - cs.GaussNewton(problem)
    expected = dense(name, "hessian") - dense(name, "gauss_newton")
    scale = float(dense(name, "hessian").norm())
    check_products(E, expected, rtol=EXACT[torch.float64], scale=scale)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_tape_is_used_where_it_can_be(name: str) -> None:
    """A silent fall-back would cost the user a factor of two without anybody noticing."""
    problem = BY_NAME[name].problem()
    v = torch.randn(problem.params.size, dtype=torch.float64)
    cs.Hessian(problem) @ v
    assert problem.companion(Engine)._linearizer.tapes("second order") == (name not in NEEDS_GRAPHS)
