"""ReLU, whose backward pass is differentiated by the cotangent alone.

The mask does not change with the input. torch says so with a tensor of zeros, and adds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``, twice differentiable.

    >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
    >>> torch.autograd.grad(relu(x).sum(), x)[0]
    tensor([0., 1.])
    """
    y: Tensor = _Relu.apply(x)  # type: ignore[no-untyped-call]
    return y


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        masked = _Masked.apply if torch.is_grad_enabled() else _masked
        found: Tensor = masked(grads[0], y.detach())
        return found


def _masked(delta: Tensor, y: Tensor) -> Tensor:
    """``δ`` where ``y > 0``, zero elsewhere."""
    return torch.ops.aten.threshold_backward(delta, y, 0)


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, delta: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return _masked(delta, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return _masked(grads[0], y), None
