"""Hessian products against central differences of the gradient: no second derivative over there.

With step ``h`` the error is ``h²/6 ‖∇³L‖ + ε ‖∇L‖ / h``. For ``h = 1e-5`` and third derivatives of
10 – 1000 times the Hessian (small networks; batch norm over a batch of two is at the upper end)
that predicts ``2e-10 – 2e-8`` from truncation and ``1e-11`` from rounding, relative to ``‖H v‖`` of
order 1; 1e-6 leaves room for the stiffest case and is far below any real mistake.
"""

from __future__ import annotations

import pytest
import torch

import curvescope as cs
from tests.cases import BY_NAME, CASES
from tests.conformance import assert_relative, random_block

STEP, RTOL = 1e-5, 1e-6
# Where the model says "constant" (detach, no_grad, a padding row) the Hessian treats it as one;
# moving the weights moves that constant, so finite differences see another function.
STOPPED = {"detach", "no-grad-block", "embedding-padding"}


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in STOPPED])
def test_hessian_product(name: str) -> None:
    reference = BY_NAME[name].reference()
    v = random_block(reference.size, 1, torch.float64, seed=30)[:, 0]
    product = cs.Hessian(BY_NAME[name].problem(), keep=False) @ v
    assert_relative(
        product, reference.finite_difference_product(v, STEP), rtol=RTOL, what="finite difference"
    )


@pytest.mark.parametrize("name", ["cross_entropy", "conv-stride-padding", "batch-norm-train"])
def test_differences_of_the_librarys_own_gradient(name: str) -> None:
    """``Problem.gradient`` at shifted weights, each in a problem of its own."""
    case = BY_NAME[name]
    v = random_block(case.reference().size, 1, torch.float64, seed=31)[:, 0]

    def gradient(shift: float) -> torch.Tensor:
        model = case.model()
        torch.nn.utils.vector_to_parameters(
            torch.nn.utils.parameters_to_vector(model.parameters()).detach() + shift * v,
            model.parameters(),
        )
        return cs.Problem(model, case.data(), case.loss, mode=case.mode).gradient()

    difference = (gradient(STEP) - gradient(-STEP)) / (2 * STEP)
    assert_relative(cs.Hessian(case.problem()) @ v, difference, rtol=RTOL, what="own gradient")
