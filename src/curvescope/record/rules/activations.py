"""Activations of transformers and recurrent nets: one pass over memory for each tangent.

``y = f(x)`` has the step ``ẏ = f′(x) ẋ``, which torch has as a kernel, the backward pass of ``f``.
The backward pass itself, ``(g, x) ↦ g f′(x)``, has ``ġ f′(x) + g f″(x) ẋ``. A step that is used
once calls the kernels; one that will be used often has its slopes worked out (``condensed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from curvescope.record.constant import Cache
from curvescope.record.rules.generic import pointwise
from curvescope.record.rules.step import Call, LinearStep, Outputs, rule

aten = torch.ops.aten
Kernel = Callable[[Tensor], Tensor]  # t ↦ f′(x) t, for one tangent or, by broadcasting, for several


def _forward(kernel: Kernel, slope: Callable[[], Tensor] | None = None) -> LinearStep:
    """``ẏ = f′(x) ẋ``; ``slope`` gives ``f′(x)`` where multiplying with it is faster."""

    def single(t: Tensor, *_: Tensor | None) -> Outputs:
        return kernel(t)

    def condensed(_: Cache) -> LinearStep:
        return _forward(slope().mul) if slope else made

    made = LinearStep(single, single, condensed if slope else None, fresh=True)
    return made


def _backward(
    kernel: Kernel, bend: Callable[[], Tensor] | None, slope: Callable[[], Tensor]
) -> LinearStep:
    """``ġ f′(x) + (g f″(x)) ẋ``, the second factor from ``bend``; None: ``x`` is constant."""
    curved = bend() if bend else None

    def single(tg: Tensor | None, tx: Tensor | None = None, *_: Tensor | None) -> Outputs:
        if tg is None:
            return None if tx is None or curved is None else tx * curved
        out = kernel(tg)
        return out if tx is None or curved is None else out.addcmul_(tx, curved)

    def condensed(_: Cache) -> LinearStep:
        return _backward(slope().mul, None if curved is None else lambda: curved, slope)

    return LinearStep(single, single, condensed, fresh=True)


def _plain(call: Call, *inputs: Tensor) -> bool:
    """Whether all arguments have the shape and type of the result."""
    return all(x.shape == call.out.shape and x.dtype == call.out.dtype for x in inputs)


# tanh and sigmoid: both by their results ----------------------------------------------------------


@rule(aten.tanh.default)
def _tanh(call: Call) -> LinearStep:
    y = call.out.detach()
    return _forward(lambda t: aten.tanh_backward(t, _as(y, t)))


@rule(aten.sigmoid.default)
def _sigmoid(call: Call) -> LinearStep:
    y = call.out.detach()
    return _forward(lambda t: aten.sigmoid_backward(t, _as(y, t)))


@rule(aten.tanh_backward.default)
def _tanh_backward(call: Call) -> LinearStep:
    g, y = (leaf.detach() for leaf in call.leaves[:2])
    if not _plain(call, g, y):
        return pointwise(call)
    bend = (lambda: (g * y).mul_(-2)) if 1 in call.active else None
    return _backward(lambda t: aten.tanh_backward(t, _as(y, t)), bend, lambda: 1 - y * y)


@rule(aten.sigmoid_backward.default)
def _sigmoid_backward(call: Call) -> LinearStep:
    g, y = (leaf.detach() for leaf in call.leaves[:2])
    if not _plain(call, g, y):
        return pointwise(call)
    bend = (lambda: torch.addcmul(g, g, y, value=-2)) if 1 in call.active else None
    return _backward(lambda t: aten.sigmoid_backward(t, _as(y, t)), bend, lambda: y - y * y)


# GELU and SiLU: by their arguments ----------------------------------------------------------------


@rule(aten.gelu.default)
def _gelu(call: Call) -> LinearStep:
    x, form = call.leaves[0].detach(), _form(call, 1)

    def kernel(t: Tensor) -> Tensor:
        return aten.gelu_backward(t, _as(x, t), approximate=form)

    return _forward(kernel, lambda: kernel(torch.ones_like(x)))


@rule(aten.gelu_backward.default)
def _gelu_backward(call: Call) -> LinearStep:
    g, x, form = call.leaves[0].detach(), call.leaves[1].detach(), _form(call, 2)
    if not _plain(call, g, x):
        return pointwise(call)

    def kernel(t: Tensor) -> Tensor:
        return aten.gelu_backward(t, _as(x, t), approximate=form)

    bend = (lambda: _gelu_bend(x, form).mul_(g)) if 1 in call.active else None
    return _backward(kernel, bend, lambda: kernel(torch.ones_like(x)))


def _form(call: Call, position: int) -> str:
    """``"none"`` or ``"tanh"``, a keyword that is last where it is given."""
    return call.leaves[position] if len(call.leaves) > position else "none"


def _gelu_bend(x: Tensor, form: str) -> Tensor:
    """The second derivative of ``x Φ(x)``, or of its approximation by ``tanh``, in new memory.

    ``φ(x)(2 − x²)``; with ``u = √(2/π)(x + 0.044715 x³)``, ``τ = tanh u`` and ``σ = 1 − τ²`` it is
    ``σ (u′ + ½ x u″ − x τ u′²)``.
    """
    square = x * x
    if form == "none":
        density = torch.mul(square, -0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
        return density.mul_(square.neg_().add_(2))
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    tau = torch.mul(square, scale * cubic).add_(scale).mul_(x).tanh_()
    first = torch.mul(square, 3 * scale * cubic).add_(scale)  # u′
    inner = square.mul_(3 * scale * cubic).add_(first)  # u′ + ½ x u″, as u″ = 6 · 0.044715 √(2/π) x
    inner.addcmul_(first.square_().mul_(x), tau, value=-1)
    return inner.mul_(tau.square_().neg_().add_(1))


@rule(aten.silu.default)
def _silu(call: Call) -> LinearStep:
    x = call.leaves[0].detach()
    kernel: Kernel = lambda t: aten.silu_backward(t, _as(x, t))  # noqa: E731
    return _forward(kernel, lambda: kernel(torch.ones_like(x)))


@rule(aten.silu_backward.default)
def _silu_backward(call: Call) -> LinearStep:
    g, x = (leaf.detach() for leaf in call.leaves[:2])
    if not _plain(call, g, x):
        return pointwise(call)
    kernel: Kernel = lambda t: aten.silu_backward(t, _as(x, t))  # noqa: E731

    def bend() -> Tensor:
        """``g s (1 − s)(2 + x (1 − 2 s))``."""
        s = torch.sigmoid(x)
        inner = torch.addcmul(x, x, s, value=-2).add_(2)
        return inner.mul_(s.addcmul_(s, s, value=-1)).mul_(g)

    return _backward(kernel, bend if 1 in call.active else None, lambda: kernel(torch.ones_like(x)))


# Powers -------------------------------------------------------------------------------------------


@rule(aten.pow.Tensor_Scalar)
def _power(call: Call) -> LinearStep:
    """``n xⁿ⁻¹ ẋ`` for the small whole ``n`` that networks have."""
    x, n = call.leaves[0].detach(), call.leaves[1]
    if n not in (2, 3) or not x.is_floating_point():
        return pointwise(call)
    slope = x * 2 if n == 2 else (x * x).mul_(3)
    return _forward(slope.mul)


def _as(x: Tensor, t: Tensor) -> Tensor:
    """``x`` in the shape of one tangent, or of several with columns first."""
    return x if x.shape == t.shape else x.expand_as(t)
