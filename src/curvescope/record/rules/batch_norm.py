"""Batch norm with frozen statistics, forwards and backwards, as one operation each.

With ``r = 1/√(var + ε)`` and ``x̂ = (x − mean) r`` it is ``y = w x̂ + b``, one weight a channel:

    tangent     ẏ = w r ẋ + ẇ x̂ + ḃ
    adjoint     x̄ = w r g,  w̄ = Σ g x̂,  b̄ = Σ g
    its tangent w r ġ + ẇ r g,  Σ (ġ x̂ + g r ẋ),  Σ ġ

Sums are over everything but the channels. Norms by the statistics of the batch itself are taken
apart into elementary operations (:mod:`curvescope.record.apart`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.record.rules.step import (
    Call,
    LinearStep,
    Outputs,
    fresh_copy,
    make_step,
    rule,
)

aten = torch.ops.aten


class _Frozen:
    """A norm at one input: its slopes, and the kernels that torch has for them."""

    def __init__(self, x: Tensor, w: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> None:
        self.x, self.mean, self._var, self._eps = x.detach(), mean.detach(), var.detach(), eps
        self._w = None if w is None else w.detach()
        self.rstd = (self._var + eps).rsqrt()

    def beside(self, t: Tensor) -> Tensor:
        """``[C]``, or ``[K, C]`` for several columns, in the shape of ``x``."""
        ones = (1,) * (self.x.ndim - 2)
        return t.view(-1, *ones) if t.ndim == 1 else t.view(len(t), 1, -1, *ones)

    def scaled(self, t: Tensor, shift: Tensor | None = None) -> Tensor:
        """``w r t + shift`` in new memory, in one pass for a single tangent."""
        single, zero = t.ndim == self.x.ndim, torch.zeros_like(self.mean)
        rows, bias = (t, shift) if single else (t.flatten(0, 1), None)
        out = aten.native_batch_norm(rows, self._w, bias, zero, self._var, False, 0.0, self._eps)[0]
        if single:
            return out
        out = out.view(t.shape)
        return out if shift is None else out.add_(self.beside(shift))

    def pulled(self, g: Tensor, x: Tensor, mean: Tensor, mask: list[bool]) -> list[Tensor | None]:
        """``w r g``, ``Σ g (x − mean) r`` and ``Σ g`` in one pass, those that the mask names."""
        made = aten.native_batch_norm_backward(
            g, x, self._w, mean, self._var, None, None, False, self._eps, mask
        )
        return [t if there else None for t, there in zip(made, mask, strict=True)]


@rule(aten.native_batch_norm.default)
def _batch_norm(call: Call) -> LinearStep:
    x, w, _, mean, var, *_, eps = call.args
    at = _Frozen(x, w, mean, var, eps)

    def step(tx: Any, tw: Any = None, tb: Any = None, *_: Any) -> Outputs:
        slope = None if tw is None else tw * at.rstd
        shift = tb if slope is None else -slope * at.mean if tb is None else tb - slope * at.mean
        if tx is None:
            out = fresh_copy(at.beside(shift).expand(*shift.shape[:-1], *at.x.shape))
        else:
            out = at.scaled(tx, shift)
        if slope is not None:
            out.addcmul_(at.x.expand_as(out), at.beside(slope))
        return out, None, None

    return make_step(step, step, fresh=True)


@rule(aten.native_batch_norm_backward.default)
def _batch_norm_backward(call: Call) -> LinearStep:
    g, x, w, mean, var, *_, eps, mask = call.args
    at, g, (by_x, by_w, by_b) = _Frozen(x, w, mean, var, eps), g.detach(), mask

    def by_slope(tw: Tensor | None, gx: Tensor | None) -> Tensor | None:
        """``gx + ẇ r g``."""
        if tw is None or not by_x:
            return gx
        slope = at.beside(tw * at.rstd)
        return g * slope if gx is None else gx.addcmul_(g.expand_as(gx), slope)

    def single(tg: Any, tx: Any = None, tw: Any = None, *_: Any) -> Outputs:
        given: list[Any] = [None] * 3 if tg is None else at.pulled(tg, at.x, at.mean, mask)
        gx, gw, gb = given
        if by_w and tx is not None:
            more = at.pulled(g, tx, torch.zeros_like(at.mean), [False, True, False])[1]
            gw = more if gw is None else gw.add_(more)
        return by_slope(tw, gx), gw, gb

    def block(tg: Any, tx: Any = None, tw: Any = None, *_: Any) -> Outputs:
        over = [1, *range(3, x.ndim + 1)]
        both = None
        if by_w and tg is not None:
            both = tg * (at.x - at.beside(at.mean)).mul_(at.beside(at.rstd))
        if by_w and tx is not None:
            slope = g * at.beside(at.rstd)
            both = tx * slope if both is None else both.addcmul_(tx, slope.expand_as(both))
        gx = at.scaled(tg) if by_x and tg is not None else None
        gb = tg.sum(over) if by_b and tg is not None else None
        return by_slope(tw, gx), None if both is None else both.sum(over), gb

    return make_step(single, block, fresh=True)
