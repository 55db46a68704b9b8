"""Convolution and its two partial derivatives, closed under differentiation.

``y = W ∗ x`` is bilinear, and so are its adjoints ``∂⟨δ, y⟩/∂x = Wᵀ ∗ δ`` and
``∂⟨δ, y⟩/∂W = δ ⋆ x``: the derivative of each of the three is made of the other two. Written so,
every second derivative runs on the kernels of the forward and the backward pass. torch's own double
backward turns images into filters: a whole step takes 1.2 to 1.6 times as long on an H200 (1.36
for VGG16-BN with TF32, 1.54 for VGG11-W64 without); on a CPU 1.04 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

aten = torch.ops.aten


@dataclass(frozen=True)
class Settings:
    """Stride, padding, dilation (one number per dimension) and groups of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``W ∗ x + b``."""
        zeros = [0] * len(self.stride)
        return aten.convolution(
            x, weight, bias, self.stride, self.padding, self.dilation, False, zeros, self.groups
        )

    def transpose(self, delta: Tensor, weight: Tensor, shape: Sequence[int]) -> Tensor:
        """``Wᵀ ∗ δ`` for an input of spatial ``shape``; torch differentiates this well itself."""
        extra = [
            size + 2 * p - d * (k - 1) - 1 - (out - 1) * s
            for size, out, k, s, p, d in zip(
                shape, delta.shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation,
                strict=True,
            )
        ]  # fmt: skip
        return aten.convolution(
            delta, weight, None, self.stride, self.padding, self.dilation, True, extra, self.groups
        )

    def backward(
        self, delta: Tensor, x: Tensor, weight: Tensor, *, gradients: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``Wᵀ ∗ δ``, ``δ ⋆ x`` and ``Σ δ``; None for each that ``gradients`` does not request."""
        zeros = [0] * len(self.stride)
        return aten.convolution_backward(
            delta, x, weight, [weight.shape[0]], self.stride, self.padding, self.dilation, False,
            zeros, self.groups, list(gradients),
        )  # fmt: skip


@dataclass
class Pass:
    """Which gradients a backward pass needs; autograd does not tell a function which are unused."""

    weights: bool = True


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, needed: Pass
) -> Tensor:
    """``W ∗ x + b``, twice differentiable; gradients by ``W`` and ``b`` while they are needed.

    >>> x, w = torch.ones(1, 1, 3), torch.ones(1, 1, 2)
    >>> convolve(x, w, None, Settings((1,), (0,), (1,), 1), Pass())
    tensor([[[2., 2.]]])
    """
    y: Tensor = _Convolve.apply(x, weight, bias, settings, needed)  # type: ignore[no-untyped-call]
    return y


def weight_gradient(delta: Tensor, x: Tensor, weight: Tensor, settings: Settings) -> Tensor:
    """``δ ⋆ x``, shaped like ``weight``; differentiable once in ``δ`` and ``x``.

    >>> delta, x = torch.ones(1, 1, 2), torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> weight_gradient(delta, x, torch.zeros(1, 1, 2), Settings((1,), (0,), (1,), 1))
    tensor([[[3., 6.]]])
    """
    g: Tensor = _WeightGradient.apply(delta, x, weight.detach(), settings)  # type: ignore[no-untyped-call]
    return g


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, needed: Pass
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings, ctx.needed = settings, needed
        return settings.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (delta,), (x, weight), settings = grads, ctx.saved_tensors, ctx.settings
        on_x, on_weight, on_bias = ctx.needs_input_grad[:3]
        if not torch.is_grad_enabled():
            gradients = (on_x, on_weight and ctx.needed.weights, on_bias and ctx.needed.weights)
            return (*settings.backward(delta, x, weight, gradients=gradients), None, None)
        gx = settings.transpose(delta, weight, x.shape[2:]) if on_x else None
        gw = gb = None
        if ctx.needed.weights:
            gw = weight_gradient(delta, x, weight, settings) if on_weight else None
            gb = delta.sum([0, *range(2, x.ndim)]) if on_bias else None
        return gx, gw, gb, None, None


class _WeightGradient(torch.autograd.Function):
    """``δ ⋆ x``; ``weight`` only gives its shape."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, x: Tensor, weight: Tensor, settings: Settings) -> Tensor:
        ctx.save_for_backward(delta, x)
        ctx.settings = settings
        return settings.backward(delta, x, weight, gradients=(False, True, False))[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (v,), (delta, x), settings = grads, ctx.saved_tensors, ctx.settings
        on_delta = settings.forward(x, v) if ctx.needs_input_grad[0] else None
        on_x = settings.transpose(delta, v, x.shape[2:]) if ctx.needs_input_grad[1] else None
        return on_delta, on_x, None, None
