"""The long short-term memory: ``c' = f c + i g``, ``h' = o tanh c'``.

The gates ``i, f, o`` are sigmoids and ``g`` is the tanh of ``a = x + W h``, where ``x`` is what the
inputs contribute. All arrays have the time first, ``[T, B, …]``; tangents come in ``K`` columns,
``[T, K, B, …]``. A loop over time does only what needs the step before; the rest is done for all
times at once.

References:
    Hochreiter and Schmidhuber (1997), *Long Short-Term Memory*, in the form of torch's ``nn.LSTM``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from curvescope.record.multiply import affine, multiply
from curvescope.record.recurrent.cell import (
    Adjoint,
    Numbers,
    Sources,
    States,
    before,
    later,
    over_columns,
)

GATES = 4


def run(x: Tensor, w: Tensor, bias: Tensor | None, h: Tensor, c: Tensor | None) -> States:
    """All states and gates; ``bias`` is a part of ``x``."""
    assert c is not None
    steps, batch, width = x.shape[0], x.shape[1], x.shape[2] // GATES
    gates, wt = x.new_empty(x.shape), w.t().contiguous()
    out, cells = x.new_empty(steps, batch, width), x.new_empty(steps, batch, width)
    for x_, gates_, h_, c_ in zip(*map(torch.unbind, (x, gates, out, cells)), strict=True):
        a = affine(x_, h, wt)
        i, f, g, o = gates_.chunk(GATES, 1)
        torch.sigmoid(a[:, : 2 * width], out=gates_[:, : 2 * width])
        torch.tanh(a[:, 2 * width : 3 * width], out=g)
        torch.sigmoid(a[:, 3 * width :], out=o)
        torch.mul(i, g, out=c_).addcmul_(f, c)
        torch.tanh(c_, out=h_).mul_(o)
        h, c = h_, c_
    return out, cells, gates


class Slopes:
    """The derivatives at the recorded numbers."""

    def __init__(self, n: Numbers) -> None:
        assert n.c0 is not None
        self._w = n.w
        i, f, g, o = n.gates.chunk(GATES, 2)
        squashed = torch.tanh(n.cells)
        if n.slopes is None:
            slopes = torch.addcmul(n.gates, n.gates, n.gates, value=-1)
            torch.mul(g, g, out=slopes.chunk(GATES, 2)[2]).neg_().add_(1)
            arguments, factors = torch.empty_like(slopes), (g, before(n.cells, n.c0), i, squashed)
            parts = (t.chunk(GATES, 2) for t in (slopes, arguments))
            for factor, slope, argument in zip(factors, *parts, strict=True):
                torch.mul(slope, factor, out=argument)
            n = replace(n, slopes=(slopes, arguments))
        assert n.slopes is not None
        # Of the gates by their arguments; of c' by those of i, f and g, and of h' by that of o.
        self._slopes, self._arguments = n.slopes
        self._cell = torch.mul(squashed, squashed).neg_().add_(1).mul_(o)  # of h' by c'
        self._forget = f
        self._numbers, self._squashed = n, squashed

    def reusable(self) -> tuple[Tensor, Tensor]:
        """What :class:`Numbers` may bring along."""
        return self._slopes, self._arguments

    def push(self, x: Tensor, h: Tensor | None, c: Tensor | None) -> States:
        """Tangents of states and gates; ``x: [T, K, B, 4 H]`` is written over."""
        steps, columns, batch, wide = x.shape
        width, wt = wide // GATES, self._w.t().contiguous()
        out, cells = (x.new_empty(steps, columns, batch, width) for _ in range(2))
        scaled = x.new_empty(columns, batch, wide)
        parts = scaled.view(columns, batch, GATES, width)
        for t in range(steps):
            a = x[t]
            if h is not None:
                a = affine(a.view(-1, wide), h.reshape(-1, width), wt).view(a.shape)
            torch.mul(a, self._arguments[t], out=scaled)
            torch.mul(a, self._slopes[t], out=x[t])
            torch.sum(parts[:, :, :3], 2, out=cells[t])
            if c is not None:
                cells[t].addcmul_(self._forget[t], c)
            torch.addcmul(parts[:, :, 3], self._cell[t], cells[t], out=out[t])
            h, c = out[t], cells[t]
        return out, cells, x

    def pull(self, onto: Sources) -> Adjoint:
        """The adjoint: from ``∂/∂h``, ``∂/∂c`` at all times to those of ``x``, ``h_0``, ``c_0``."""
        steps, columns, batch, width = onto.shape
        dx = onto.arguments
        added = dx is not None
        if dx is None:
            dx = onto.like.new_empty(steps, columns, batch, GATES * width)
        d = dx.view(steps, columns, batch, GATES, width)
        slopes = self._arguments.view(steps, batch, GATES, width)
        totals, cells = (dx.new_empty(steps, columns, batch, width) for _ in range(2))
        carry: Tensor | None = None
        dc: Tensor | None = None
        for t in reversed(range(steps)):
            dh, m = totals[t], cells[t]
            later(onto.h, t, carry, dh)
            torch.mul(self._cell[t], dh, out=m)
            for more in (dc, None if onto.c is None else onto.c[t]):
                if more is not None:
                    m.add_(more)
            if added:
                d[t, :, :, :3].addcmul_(slopes[t, :, :3], m[:, :, None])
                d[t, :, :, 3].addcmul_(slopes[t, :, 3], dh)
            else:
                torch.mul(slopes[t, :, :3], m[:, :, None], out=d[t, :, :, :3])
                torch.mul(slopes[t, :, 3], dh, out=d[t, :, :, 3])
            dc = m * self._forget[t]
            back = multiply(dx[t].view(-1, GATES * width), self._w)
            carry = back.view(columns, batch, width)
        assert carry is not None
        return Adjoint(dx, None, carry, dc, totals, cells)

    def bend(self, totals: Tensor, cells: Tensor) -> Bends:
        """The second derivatives, weighted with the adjoint of the recorded pass."""
        return Bends(self._numbers, self._slopes, self._squashed, totals, cells)


class Bends:
    """How the adjoint's slopes change with states and gates, times the adjoint."""

    def __init__(
        self, n: Numbers, slopes: Tensor, squashed: Tensor, totals: Tensor, cells: Tensor
    ) -> None:
        assert n.c0 is not None
        i, f, g, o = n.gates.chunk(GATES, 2)
        si, sf, sg, so = slopes.chunk(GATES, 2)
        dh, m = totals[:, 0], cells[:, 0]
        curved = torch.mul(squashed, squashed).neg_().add_(1).mul_(dh)
        self._cell_o, self._cell_c = curved, torch.mul(o, squashed).mul_(curved).mul_(-2)
        self._i_i, self._i_g = _turned(m * g, i), m * si
        self._f_f, self._f_c = _turned(before(n.cells, n.c0).mul_(m), f), m * sf
        self._g_i, self._g_g = m * sg, torch.mul(m, i).mul_(g).mul_(-2)
        self._o_o, self._o_c = _turned(dh * squashed, o), curved * so
        self._forget = m

    def sources(
        self, gates: Tensor, cells: Tensor, out: Tensor | None, c0: Tensor | None, h0: Tensor | None
    ) -> Sources:
        """What the tangents of states and gates ``[T, K, B, …]`` put onto the adjoint's."""
        i, f, g, o = gates.chunk(GATES, 3)
        arguments = torch.empty_like(gates)
        di, df, dg, do = arguments.chunk(GATES, 3)
        torch.mul(over_columns(self._i_i), i, out=di).addcmul_(over_columns(self._i_g), g)
        torch.mul(over_columns(self._f_f), f, out=df)
        df[1:].addcmul_(over_columns(self._f_c[1:]), cells[:-1])
        if c0 is not None:
            df[0].addcmul_(self._f_c[0], c0)
        torch.mul(over_columns(self._g_i), i, out=dg).addcmul_(over_columns(self._g_g), g)
        torch.mul(over_columns(self._o_o), o, out=do).addcmul_(over_columns(self._o_c), cells)
        onto = over_columns(self._cell_o) * o
        onto.addcmul_(over_columns(self._cell_c), cells)
        onto[:-1].addcmul_(over_columns(self._forget[1:]), f[1:])
        return Sources(None, onto, arguments, None, self._forget[0] * f[0])


def _turned(t: Tensor, gate: Tensor) -> Tensor:
    """``t (1 − 2 gate)``, over ``t``."""
    return t.addcmul_(t, gate, value=-2)
