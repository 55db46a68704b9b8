"""Layer norm, forwards and backwards, as one operation each.

With ``x̂ = (x − mean x) r`` for ``r = 1/√(var x + ε)`` and ``y = w x̂ + b``, the derivative of ``x̂``
is the symmetric matrix ``N t = r (t − mean t − x̂ mean(x̂ t))``, which torch has as a kernel:

    tangent     ẏ = w N ẋ + ẇ x̂ + ḃ
    adjoint     x̄ = N (w g),  w̄ = Σ g x̂,  b̄ = Σ g
    its tangent N (w ġ + ẇ g) − r [mean(x̂ ẋ) x̄ + mean(x̂ w g) N ẋ + x̂ mean(w g N ẋ)]

Means are over the normalized dimensions and sums over the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.record.rules.step import Call, LinearStep, Outputs, lift, make_step, rule

aten = torch.ops.aten


class _Norm:
    """``N`` and ``x̂`` at one input."""

    def __init__(self, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor) -> None:
        self._x, self._shape, self._mean, self._rstd = x, shape, mean, rstd
        self.ndim, self.count = x.ndim, len(shape)
        self.over = list(range(-self.count, 0))

    def normalized(self) -> Tensor:
        """``x̂``."""
        return (self._x - self._mean).mul_(self._rstd)

    def average(self, t: Tensor) -> Tensor:
        """The mean over the normalized dimensions."""
        return t.mean(self.over, keepdim=True)

    def derivative(self, t: Tensor, xhat: Tensor) -> Tensor:
        """``N t`` for one tangent, or several with columns first, in new memory."""
        if t.ndim == self.ndim:
            mask = [True, False, False]
            out = aten.native_layer_norm_backward(
                t, self._x, self._shape, self._mean, self._rstd, None, None, mask
            )[0]
            return out
        out = t - self.average(t)
        out.addcmul_(xhat.expand_as(t), self.average(t * xhat), value=-1)
        return out.mul_(self._rstd)

    def bent(self, tx: Tensor, s: Tensor, into: Tensor, xhat: Tensor) -> tuple[Tensor, Tensor]:
        """The change of ``N s`` with ``x``, where ``into`` is ``N s``; and ``N ẋ``."""
        moved = self.derivative(tx, xhat)
        out = into * self.average(xhat * tx)
        out.addcmul_(moved, self.average(xhat * s).expand_as(moved))
        out.addcmul_(xhat.expand_as(out), self.average(s * moved))
        return out.mul_(self._rstd).neg_(), moved


def _sum_to(t: Tensor, shape: list[int], columns: bool) -> Tensor:
    """Summed over everything but columns and the normalized dimensions."""
    lead = t.flatten(int(columns), -1 - len(shape)) if t.ndim > len(shape) + columns else None
    return t if lead is None else lead.sum(int(columns))


@rule(aten.native_layer_norm.default)
def _layer_norm(call: Call) -> LinearStep:
    x, shape, w, _, _ = call.args
    at = _Norm(x.detach(), list(shape), *(t.detach() for t in call.out[1:]))
    weight = None if w is None else w.detach()
    n, ndim = len(shape), x.ndim

    def step(tx: Any, tw: Any, tb: Any, block: bool) -> Outputs:
        xhat = at.normalized() if tw is not None or (block and tx is not None) else None
        out = None
        if tx is not None:
            out = at.derivative(tx, xhat)  # type: ignore[arg-type]
            out = out if weight is None else out.mul_(weight)
        for t, factor in ((tw, xhat), (tb, None)):
            if t is not None:
                t = lift(t, ndim) if block else t
                part = t if factor is None else t * factor
                out = (
                    part if out is None else out.add_(part) if _whole(out, x, block) else out + part
                )
        if out is None or _whole(out, x, block):
            return out, None, None
        return out.expand(*out.shape[: int(block)], *x.shape).clone(), None, None

    def single(*t: Any) -> Outputs:
        return step(t[0], t[1 + n], t[2 + n], False)

    def block(*t: Any) -> Outputs:
        return step(t[0], t[1 + n], t[2 + n], True)

    return make_step(single, block)


def _whole(t: Tensor, x: Tensor, block: bool) -> bool:
    return t.shape[int(block) :] == x.shape


@rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(call: Call) -> LinearStep:
    g, x, shape, mean, rstd, w, _, mask = call.args
    g, shape, n, ndim = g.detach(), list(shape), len(shape), x.ndim
    at = _Norm(x.detach(), shape, mean.detach(), rstd.detach())
    weight = None if w is None else w.detach()
    into = call.out[0]

    def step(tg: Any, tx: Any, tw: Any, block: bool) -> Outputs:
        xhat = at.normalized()
        s = g if weight is None else g * weight
        gx = gw = gb = moved = change = None
        if tx is not None:
            base = at.derivative(s, xhat) if into is None else into.detach()
            change, moved = at.bent(tx, s, base, xhat)
        if mask[0]:
            ts = None if tg is None else tg if weight is None else tg * weight
            if tw is not None:
                part = lift(tw, ndim) * g if block else tw * g
                ts = part if ts is None else ts + part
            gx = None if ts is None else at.derivative(ts, xhat)
            gx = change if gx is None else gx if change is None else gx.add_(change)
        if mask[1] and (tg is not None or moved is not None):
            both = None if tg is None else tg * xhat
            if moved is not None:
                both = moved * g if both is None else both.addcmul_(moved, g.expand_as(moved))
            gw = _sum_to(both, shape, block)  # type: ignore[arg-type]
        if mask[2] and tg is not None:
            gb = _sum_to(tg, shape, block)
        return gx, gw, gb

    def single(*t: Any) -> Outputs:
        return step(t[0], t[1], t[4 + n], False)

    def block(*t: Any) -> Outputs:
        return step(t[0], t[1], t[4 + n], True)

    return make_step(single, block)
