"""Hessian products against central differences of the gradient: no second derivative over there.

With step ``h`` the relative error is ``h²/6 · ‖∇³L[v, v]‖ / ‖H v‖ + ε ‖∇L‖ / (h ‖H v‖)``. Halving
steps on the dense reference shows the ``h²`` law down to ``h = 1e-6``, with a constant of 5 for an
MLP and 2e3 for the stiffest cases (batch norm over a batch of two), that is 5e-12 – 2e-9 of
truncation at ``h = 1e-6``, and 1e-10 – 1e-9 of rounding. The bound of 1e-7 is far above both and
far below any real mistake.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import curvescope as cs
from tests.cases import BY_NAME, CASES
from tests.conformance import assert_relative, random_block
from tests.reference.curvature import concatenate

STEP, RTOL = 1e-6, 1e-7
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
        return cs.Problem(model, case.data(), loss=case.loss, mode=case.mode).gradient()

    difference = (gradient(STEP) - gradient(-STEP)) / (2 * STEP)
    assert_relative(cs.Hessian(case.problem()) @ v, difference, rtol=RTOL, what="own gradient")


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("layer-norm", torch.func.hessian),
        ("weight-norm", lambda f: torch.func.jacrev(torch.func.jacrev(f))),
    ],
)
def test_where_torch_itself_is_wrong(name: str, theirs: Any) -> None:
    """PyTorch 2.13 errs by percents on these layers; if this fails, correct the guide."""
    case = BY_NAME[name]
    model, (x, y) = case.model(), concatenate(case.data())[0]
    named = {n: p.detach() for n, p in model.named_parameters()}
    sizes = [p.numel() for p in named.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = zip(named.items(), flat.split(sizes), strict=True)
        state = {n: piece.view(p.shape) for (n, p), piece in pieces}
        return F.cross_entropy(torch.func.functional_call(model, state, (x,)), y)

    flat = torch.cat([p.reshape(-1) for p in named.values()])
    v = random_block(len(flat), 1, torch.float64, seed=32)[:, 0]
    ahead, behind = (torch.func.grad(loss)(flat + s * STEP * v) for s in (1, -1))
    difference = (ahead - behind) / (2 * STEP)
    assert_relative(cs.Hessian(case.problem()) @ v, difference, rtol=RTOL, what="ours")
    assert (theirs(loss)(flat) @ v - difference).norm() > 0.01 * difference.norm()
