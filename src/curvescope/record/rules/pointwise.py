"""Pointwise operations with a cheaper rule than the generic one, and softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.record.rules.generic import generic
from curvescope.record.rules.shapes import shifted
from curvescope.record.rules.step import (
    Call,
    LinearStep,
    Outputs,
    lift,
    make_step,
    rule,
    total,
)  # fmt: skip

aten = torch.ops.aten


@rule(aten.relu.default)
def _relu(call: Call) -> LinearStep:
    return _gate(call.out.detach(), 0)


@rule(aten.threshold_backward.default)
def _threshold_backward(call: Call) -> LinearStep:
    # The gate is constant almost everywhere, so only the gradient argument carries a tangent.
    return _gate(call.leaves[1].detach(), call.leaves[2])


def _gate(y: Tensor, threshold: float) -> LinearStep:
    """Zero where ``y`` is not above the threshold."""

    def gate(t: Tensor | None, *_: Tensor | None) -> Outputs:
        return None if t is None else aten.threshold_backward(t, y, threshold)

    def inplace(t: Tensor | None, *_: Tensor | None) -> Outputs:
        if t is None:
            return None
        return aten.threshold_backward.grad_input(t, y, threshold, grad_input=t)

    return make_step(gate, gate, inplace=inplace)


@rule(
    aten.leaky_relu_backward.default, aten.rrelu_with_noise_backward.default,
    aten.hardtanh_backward.default, aten.hardsigmoid_backward.default,
    aten.hardshrink_backward.default, aten.softshrink_backward.default,
    aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default,
    aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default,
    aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default,
    aten.max_pool3d_with_indices_backward.default,
    aten.reflection_pad1d_backward.default, aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default, aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default,
)  # fmt: skip
def _backward_of_piecewise_linear(call: Call) -> LinearStep:
    """Linear in the gradient, which comes first; the input decides slopes and places only.

    Both are constant almost everywhere. Differentiated in forward mode, torch would say so with a
    tensor of zeros, and nobody could tell that nothing goes on from there.
    """
    run = call.run
    return make_step(lambda t, *_: None if t is None else run({0: t}))


@rule(aten.add.Tensor, aten.sub.Tensor)
def _add(call: Call) -> LinearStep:
    named = call.leaves[2] if len(call.leaves) > 2 else 1
    alpha = -named if call.op is aten.sub.Tensor else named
    shape = tuple(call.out.shape)
    ndim = len(shape)

    def combine(a: Tensor | None, b: Tensor | None, full: tuple[int, ...]) -> Outputs:
        if b is None:
            return a if a.shape == full else a.expand(full)  # type: ignore[union-attr]
        if a is None:
            b = b if alpha == 1 else b * alpha
            return b if b.shape == full else b.expand(full)
        return torch.add(a, b, alpha=alpha)

    def block(a: Any, b: Any = None, *_: Any) -> Outputs:
        a, b = (t if t is None else lift(t, ndim) for t in (a, b))
        columns = (b if a is None else a).shape[0]
        return combine(a, b, (columns, *shape))

    return make_step(lambda a, b=None, *_: combine(a, b, shape), block)


@rule(aten.mul.Tensor)
def _mul(call: Call) -> LinearStep:
    a, b = call.leaves[:2]
    ndim = call.out.ndim
    left: Any = b if 0 in call.active else None  # multiplies the tangent of a
    right: Any = a if 1 in call.active else None

    def single(ta: Any, tb: Any = None) -> Outputs:
        if tb is None:
            return ta * left
        if ta is None:
            return tb * right
        return _plus_product(ta * left, tb, right)

    def block(ta: Any, tb: Any = None) -> Outputs:
        return single(
            None if ta is None else lift(ta, ndim), None if tb is None else lift(tb, ndim)
        )

    return make_step(single, block)


def _plus_product(first: Tensor, a: Tensor, b: Any) -> Tensor:
    """``first + a b``, over ``first`` where it is as large as the sum."""
    if isinstance(b, Tensor) and first.dtype == a.dtype == b.dtype:
        return first.addcmul_(a, b) if _covers(first, a, b) else torch.addcmul(first, a, b)
    return first + a * b


def _covers(first: Tensor, *others: Tensor) -> bool:
    return torch.broadcast_shapes(first.shape, *(t.shape for t in others)) == first.shape


@rule(aten.mul.Scalar)
def _mul_scalar(call: Call) -> LinearStep:
    factor = call.leaves[1]
    return make_step(lambda t, *_: t * factor, lambda t, *_: t * factor)


@rule(aten.div.Tensor, aten.div.Scalar)
def _div(call: Call) -> LinearStep:
    """``(a / b)' = a' / b − b' (a / b) / b``; the first is the same whether ``b`` varies or not."""
    (numerator, divisor), ndim = call.leaves[:2], call.out.ndim
    slope: Any = None
    if 1 in call.active:
        b = divisor.detach()
        slope = -(numerator.detach() / b) / b

    def single(a: Tensor | None, b: Tensor | None = None, *_: Tensor | None) -> Outputs:
        return total([None if a is None else a / divisor, None if b is None else b * slope])

    def block(a: Tensor | None, b: Tensor | None = None, *_: Tensor | None) -> Outputs:
        a, b = (t if t is None else lift(t, ndim) for t in (a, b))
        return single(a, b)

    return make_step(single, block)


@rule(aten.neg.default)
def _neg(call: Call) -> LinearStep:
    return make_step(lambda t: -t, lambda t: -t)


@rule(aten.add.Scalar, aten.sub.Scalar)
def _shift(call: Call) -> LinearStep:
    return make_step(lambda t, *_: t, lambda t, *_: t)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(call: Call) -> LinearStep:
    if call.active != [0]:
        return generic(call)
    mask, ndim = call.leaves[1], call.out.ndim
    return make_step(
        lambda t, *_: t.masked_fill(mask, 0), lambda t, *_: lift(t, ndim).masked_fill(mask, 0)
    )


@rule(aten.log_sigmoid_forward.default)
def _log_sigmoid(call: Call) -> LinearStep:
    """Its second result is a note for the backward pass, which is written without it in `apart`."""
    slope = torch.sigmoid(-call.leaves[0].detach())
    return make_step(lambda t: (t * slope, None), lambda t: (t * slope, None))


@rule(aten.where.self)
def _where(call: Call) -> LinearStep:
    """What is not chosen does not count, not even when it is not a number."""
    chosen, ndim, shape = call.leaves[0], call.out.ndim, tuple(call.out.shape)
    zero = call.out.new_zeros(())

    def pick(a: Tensor | None, b: Tensor | None, full: tuple[int, ...]) -> Outputs:
        picked = torch.where(chosen, zero if a is None else a, zero if b is None else b)
        return picked if picked.shape == full else picked.expand(full)

    def block(_: None, a: Tensor | None = None, b: Tensor | None = None) -> Outputs:
        a, b = (t if t is None else lift(t, ndim) for t in (a, b))
        columns = (b if a is None else a).shape[0]  # type: ignore[union-attr]
        return pick(a, b, (columns, *shape))

    return make_step(lambda _, a=None, b=None: pick(a, b, shape), block)


@rule(aten._softmax.default, aten._safe_softmax.default)
def _softmax(call: Call) -> LinearStep:
    y, dim = call.out.detach(), call.leaves[1]
    if y.ndim == 0:  # the softmax of one number is 1
        return make_step(lambda *_: None, lambda *_: None)
    moved = shifted(dim, y.ndim)

    def along(t: Tensor, dim: int) -> Outputs:
        yt = y * t
        return yt - y * yt.sum(dim, keepdim=True)

    return make_step(lambda t, *_: along(t, dim), lambda t, *_: along(t, moved))


@rule(aten._log_softmax.default)
def _log_softmax(call: Call) -> LinearStep:
    p, dim = call.out.detach().exp(), call.leaves[1]
    if p.ndim == 0:
        return make_step(lambda *_: None, lambda *_: None)
    moved = shifted(dim, p.ndim)
    return make_step(
        lambda t, *_: t - (p * t).sum(dim, keepdim=True),
        lambda t, *_: t - (p * t).sum(moved, keepdim=True),
    )
