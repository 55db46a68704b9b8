"""An outside oracle: curvlinops' Hessian, GGN and empirical Fisher on the same model and data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import curvescope as cs
from tests.cases import BY_NAME
from tests.conformance import assert_relative, random_block
from tests.tolerances import EXACT

curvlinops = pytest.importorskip("curvlinops")

# No case with an affine LayerNorm: there the Hessian of curvlinops 3.0.1 (jvp over a vmapped
# jacrev) is 9 – 15 % off finite differences of the gradient; our reference agrees with those.
LOSSES = {
    "cross_entropy": nn.CrossEntropyLoss(),
    "mse": nn.MSELoss(),
    "logistic-column": nn.BCEWithLogitsLoss(),
    "conv-stride-padding": nn.CrossEntropyLoss(),
    "residual-batch-norm-eval": nn.CrossEntropyLoss(),
    "frozen-layer": nn.CrossEntropyLoss(),
}


def chosen(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("name", LOSSES)
def test_hessian_and_gauss_newton(name: str) -> None:
    case = BY_NAME[name]
    model = case.model().eval()
    problem = case.problem()
    V = random_block(problem.params.size, 3, torch.float64)
    for ours, theirs in (
        (cs.Hessian, "HessianLinearOperator"),
        (cs.GaussNewton, "GGNLinearOperator"),
    ):
        oracle = getattr(curvlinops, theirs)(
            model, LOSSES[name], chosen(model), case.data(), check_deterministic=False
        )
        assert_relative(
            ours(problem) @ V, oracle @ V, rtol=EXACT[torch.float64], what=f"{name} {theirs}"
        )


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "mse"])
def test_empirical_fisher(name: str) -> None:
    """The same mean over samples; for MSE curvlinops scales the gradients in another way."""
    case = BY_NAME[name]
    model, problem = case.model().eval(), case.problem()
    V = random_block(problem.params.size, 3, torch.float64)
    oracle = curvlinops.EFLinearOperator(
        model, LOSSES[name], chosen(model), case.data(), check_deterministic=False
    )
    ours = cs.EmpiricalFisher(problem) @ V
    assert_relative(ours, oracle @ V, rtol=EXACT[torch.float64], what=f"{name} EF")
