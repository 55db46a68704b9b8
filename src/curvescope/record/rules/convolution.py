"""Convolutions and max-pooling, forwards and backwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.record.rules.step import Call, LinearStep, Outputs, fresh_copy, make_step, rule

aten = torch.ops.aten


@rule(aten.convolution.default)
def _convolution(call: Call) -> LinearStep:
    x, w = call.leaves[0].detach(), call.leaves[1].detach()
    settings = _conv_settings(call)
    weight = w if 0 in call.active else None
    source = x if 1 in call.active else None
    shape = tuple(call.out.shape)

    def single(tx: Any, tw: Any, tb: Any = None, *_: Any) -> Outputs:
        bias_shape = None if tb is None else (1, -1) + (1,) * (len(shape) - 2)
        if tx is None and tw is None:
            return fresh_copy(tb.reshape(bias_shape).expand(shape))
        first = None if tx is None else aten.convolution(tx, weight, tb, *settings)
        if tw is None:
            return first
        second = aten.convolution(source, tw, tb if first is None else None, *settings)
        return second if first is None else second.add_(first)

    return make_step(single, _conv_block(single, shape, weight, source, settings), fresh=True)


def _conv_settings(call: Call) -> tuple[Any, ...]:
    """(stride, padding, dilation, transposed, output_padding, groups) of a convolution call."""
    return tuple(call.args[3:9])


def _conv_block(single: Any, shape: Any, weight: Any, source: Any, settings: Any) -> Any:
    transposed, groups = settings[3], settings[5]

    def block(tx: Any, tw: Any, tb: Any = None, *_: Any) -> Outputs:
        columns = next(t for t in (tx, tw, tb) if t is not None).shape[0]
        total = None
        if tx is not None:  # columns folded into the batch
            total = aten.convolution(tx.flatten(0, 1), weight, None, *settings)
            total = total.unflatten(0, (columns, -1))
        if tw is not None:
            if groups == 1 and not transposed:  # columns folded into the output channels
                y = aten.convolution(source, tw.flatten(0, 1), None, *settings)
                y = y.unflatten(1, (columns, -1)).transpose(0, 1)
            else:
                y = torch.stack([aten.convolution(source, t, None, *settings) for t in tw])
            total = y if total is None else total.add_(y)
        if tb is not None:
            b = tb.reshape(columns, 1, -1, *(1,) * (len(shape) - 2))
            total = fresh_copy(b.expand(columns, *shape)) if total is None else total + b
        return total

    return block


@rule(aten.convolution_backward.default)
def _convolution_backward(call: Call) -> LinearStep:
    """``(δ, x, W) ↦ (δ ∗ W, δ ∗ x, Σ δ)``, linear in each of its three arguments."""
    grad, x, w, bias_sizes, *settings, mask = call.args
    grad, x, w = grad.detach(), x.detach(), w.detach()
    delta: Any = grad if 1 in call.active or 2 in call.active else None

    def backward(g: Any, x_: Any, w_: Any, wanted: list[bool]) -> Any:
        return aten.convolution_backward(g, x_, w_, bias_sizes, *settings, wanted)

    # Where a weight is larger than what goes through it, both parts of its gradient are one sum
    # over twice the samples: a second result of its size would cost more than these copies.
    heavy = mask[1] and not settings[3] and w.numel() > x.numel() + grad.numel()

    def single(tg: Any, tx: Any, tw: Any, *_: Any) -> Outputs:
        gx = gw = gb = None
        together = heavy and tg is not None and tx is not None
        if together:
            pair, inputs = torch.cat([tg, delta]), torch.cat([x, tx])
            gw = backward(pair, inputs, w, [False, True, False])[1]
        if tg is not None:
            gx, first, gb = backward(tg, x, w, [mask[0], mask[1] and not together, mask[2]])
            gw = gw if together else first
        wanted = [mask[0] and tw is not None, mask[1] and tx is not None and not together, False]
        if any(wanted):
            hx, hw, _ = backward(delta, x if tx is None else tx, w if tw is None else tw, wanted)
            gx = hx if gx is None else gx if hx is None else gx.add_(hx)
            gw = hw if gw is None else gw if hw is None else gw.add_(hw)
        return (gx, gw, gb)

    def block(tg: Any, tx: Any, tw: Any, *_: Any) -> Outputs:
        columns = next(t for t in (tg, tx, tw) if t is not None).shape[0]
        results: list[Any] = [
            single(*(None if t is None else t[k] for t in (tg, tx, tw))) for k in range(columns)
        ]
        return tuple(
            None if parts[0] is None else torch.stack(parts) for parts in zip(*results, strict=True)
        )

    return make_step(single, block, fresh=True)


@rule(aten.max_pool2d_with_indices.default)
def _max_pool2d(call: Call) -> LinearStep:
    indices = call.out[1]
    flat, shape = indices.flatten(-2), tuple(indices.shape)

    def single(t: Tensor, *_: Any) -> Outputs:
        return (t.flatten(-2).gather(-1, flat).reshape(shape), None)

    def block(t: Tensor, *_: Any) -> Outputs:
        picked = t.flatten(-2).gather(-1, flat.expand(t.shape[0], *flat.shape))
        return (picked.reshape(t.shape[0], *shape), None)

    return make_step(single, block, fresh=True)


@rule(aten.max_pool2d_with_indices_backward.default)
def _max_pool2d_backward(call: Call) -> LinearStep:
    _, x, *settings, indices = call.args
    x = x.detach()
    shape, flat = tuple(x.shape), indices.flatten(-2)

    def single(t: Tensor | None, *_: Any) -> Outputs:
        if t is None:
            return None
        return aten.max_pool2d_with_indices_backward(t, x, *settings, indices)

    def block(t: Tensor | None, *_: Any) -> Outputs:
        if t is None:
            return None
        k = t.shape[0]
        y = t.new_zeros(k, *shape[:-2], shape[-2] * shape[-1])
        y.scatter_add_(-1, flat.expand(k, *flat.shape), t.flatten(-2))
        return y.reshape(k, *shape)

    return make_step(single, block, fresh=True)
