"""The rules of frozen batch norm against forward-mode differentiation of torch's own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.record.batch import TapeBatch
from curvescope.record.rules import Call
from curvescope.record.rules.batch_norm import _batch_norm, _batch_norm_backward
from tests.record.test_layer_norm import compare

aten = torch.ops.aten
COLUMNS, EPS = 2, 1e-5


@pytest.mark.parametrize("affine", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 5), (2, 3, 4, 2)])
def test_tangents_of_both_passes(shape: Any, affine: int) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(2, *shape).double()
    own = [torch.randn(shape[1]).double() for _ in range(affine)]
    w, b = [*own, None, None][:2]
    mean, var = torch.randn(shape[1]).double(), torch.rand(shape[1]).double() + 0.5
    given = (x, w, b, mean, var, False, 0.1, EPS)
    out = aten.native_batch_norm(*given)
    forward = _batch_norm(Call(None, given, {}, out, []))
    mask = [True, affine > 0, affine > 1]
    given = (g, x, w, mean, var, *out[1:], False, EPS, mask)
    backward = _batch_norm_backward(
        Call(None, given, {}, aten.native_batch_norm_backward(*given), [])
    )

    def norm(x: Tensor, *own: Tensor) -> Tensor:
        w, b = [*own, None, None][:2]
        return F.batch_norm(x, mean, var, w, b, eps=EPS)

    def adjoint(g: Tensor, *inputs: Tensor) -> Any:
        return torch.func.vjp(norm, *inputs)[1](g)

    primals = (g, x, *own)
    columns = [torch.randn(COLUMNS, *t.shape).double() for t in primals]
    for present in itertools.product([True, False], repeat=len(columns)):
        if not any(present):
            continue
        pairs = list(zip(columns, present, strict=True))
        some = [t if there else None for t, there in pairs]
        full = [t if there else torch.zeros_like(t) for t, there in pairs]
        tw, tb = [*some[2:], None, None][:2]
        for c in range(COLUMNS):
            tangents = tuple(t[c] for t in full)
            wanted: Any = torch.func.jvp(adjoint, primals, tangents)[1]
            compare(backward, [some[0], some[1], tw], c, wanted)
            if any(present[1:]):
                moved: Any = torch.func.jvp(norm, primals[1:], tangents[1:])[1]
                compare(forward, [some[1], tw, tb], c, (moved,))


def test_one_instruction_each_and_products_as_from_the_formula() -> None:
    """Norms behind and before a convolution, with weights and without, beside double backward."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=False), nn.ReLU(),
        nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4),
    ).double().eval()  # fmt: skip
    for module in model:
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    X, y = torch.randn(3, 2, 5, 5).double(), torch.tensor([0, 3, 1])
    problem = cs.Problem(model, (X, y), loss="cross_entropy")
    tape = TapeBatch(problem, next(problem.batches()))
    names = [step.name for step in tape._forward]
    assert names.count("aten.native_batch_norm.default") == 4
    assert not any("mul.Tensor" in name or "sqrt" in name for name in names)
    params = list(model.parameters())
    loss = F.cross_entropy(model(X), y)
    flat = torch.cat([t.flatten() for t in torch.autograd.grad(loss, params, create_graph=True)])
    V = torch.randn(len(flat), 3).double()
    wanted = [torch.autograd.grad(flat, params, c, retain_graph=True) for c in V.T]
    dense = torch.stack([torch.cat([t.flatten() for t in each]) for each in wanted], 1)
    for keep in (True, False):
        H = cs.Hessian(problem, keep=keep)
        torch.testing.assert_close(H @ V, dense, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(H @ V[:, 0], dense[:, 0], rtol=1e-12, atol=1e-12)
