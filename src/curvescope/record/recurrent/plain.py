"""The plain recurrent cell: ``h' = φ(x + W h)`` with ``φ`` tanh or ReLU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.record.multiply import affine, multiply
from curvescope.record.recurrent.cell import Adjoint, Numbers, Sources, States, later

GATES = 1


class Plain:
    """The cell with one of the two functions."""

    def __init__(self, squash: Any, *, bends: bool) -> None:
        self._squash, self._bends = squash, bends

    def run(self, x: Tensor, w: Tensor, bias: Tensor | None, h: Tensor, c: Tensor | None) -> States:
        """All states; ``bias`` is a part of ``x``."""
        out, wt = x.new_empty(x.shape), w.t().contiguous()
        for x_, h_ in zip(x.unbind(), out.unbind(), strict=True):
            h = h_.copy_(self._squash(affine(x_, h, wt)))
        return out, x.new_empty(0), x.new_empty(0)

    def slopes(self, n: Numbers) -> Slopes:
        """The derivatives at the recorded numbers."""
        slopes = 1 - n.out * n.out if self._bends else (n.out > 0).to(n.out.dtype)
        return Slopes(n, slopes, bends=self._bends)


class Slopes:
    """The derivatives at the recorded numbers."""

    def __init__(self, n: Numbers, slopes: Tensor, *, bends: bool) -> None:
        self._w, self._wt, self._slopes = n.w, n.w.t().contiguous(), slopes
        self._numbers, self._bends = n, bends

    def push(self, x: Tensor, h: Tensor | None, c: Tensor | None) -> States:
        """Tangents of the states; ``x: [T, K, B, H]`` is written over."""
        width = x.shape[3]
        for t in range(x.shape[0]):
            a = x[t]
            if h is not None:
                a = affine(a.view(-1, width), h.reshape(-1, width), self._wt).view(a.shape)
            h = torch.mul(a, self._slopes[t], out=x[t])
        return x, x.new_empty(0), x.new_empty(0)

    def pull(self, onto: Sources) -> Adjoint:
        """The adjoint: from ``∂/∂h`` at all times to those of ``x`` and ``h_0``."""
        steps, columns, batch, width = onto.shape
        totals = onto.like.new_empty(onto.shape)
        dx = torch.zeros_like(totals) if onto.arguments is None else onto.arguments
        carry: Tensor | None = None
        for t in reversed(range(steps)):
            later(onto.h, t, carry, totals[t])
            dx[t].addcmul_(self._slopes[t], totals[t])
            carry = multiply(dx[t].view(-1, width), self._w).view(columns, batch, width)
        assert carry is not None
        return Adjoint(dx, None, carry, None, totals, None)

    def bend(self, totals: Tensor, cells: Tensor) -> Bends:
        """The second derivatives, weighted with the adjoint of the recorded pass."""
        return Bends(-2 * self._numbers.out * totals[:, 0] if self._bends else None)


class Bends:
    """How the adjoint's slopes change with the states, times the adjoint; None: not at all."""

    def __init__(self, factor: Tensor | None) -> None:
        self._factor = factor

    def sources(
        self, gates: Tensor, cells: Tensor, out: Tensor | None, c0: Tensor | None, h0: Tensor | None
    ) -> Sources:
        """What the tangents of the states ``[T, K, B, H]`` put onto the adjoint's."""
        if self._factor is None or out is None:
            return Sources(None, None)
        return Sources(None, None, self._factor[:, None] * out)


TANH = Plain(torch.tanh_, bends=True)
RELU = Plain(torch.relu_, bends=False)
