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

LOSSES = {
    "cross_entropy": nn.CrossEntropyLoss(),
    "mse": nn.MSELoss(),
    "logistic-column": nn.BCEWithLogitsLoss(),
    "conv-stride-padding": nn.CrossEntropyLoss(),
    "residual-batch-norm-eval": nn.CrossEntropyLoss(),
    "layer-norm": nn.CrossEntropyLoss(),
    "frozen-layer": nn.CrossEntropyLoss(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_hessian_and_gauss_newton(name: str) -> None:
    case = BY_NAME[name]
    model = case.model().eval()
    params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    problem = case.problem()
    V = random_block(problem.params.size, 3, torch.float64)
    for ours, theirs in (
        (cs.Hessian, "HessianLinearOperator"),
        (cs.GaussNewton, "GGNLinearOperator"),
    ):
        oracle = getattr(curvlinops, theirs)(
            model, LOSSES[name], params, case.data(), check_deterministic=False
        )
        assert_relative(
            ours(problem) @ V, oracle @ V, rtol=EXACT[torch.float64], what=f"{name} {theirs}"
        )


def test_empirical_fisher() -> None:
    """curvlinops' ``EFLinearOperator`` takes the same mean over samples for cross-entropy."""
    case = BY_NAME["cross_entropy"]
    model = case.model().eval()
    problem = case.problem()
    V = random_block(problem.params.size, 3, torch.float64)
    oracle = curvlinops.EFLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        dict(model.named_parameters()),
        case.data(),
        check_deterministic=False,
    )
    assert_relative(
        cs.EmpiricalFisher(problem) @ V,
        oracle @ V,
        rtol=EXACT[torch.float64],
        what="EFLinearOperator",
    )
