"""The gated recurrent unit: ``h' = n + z (h − n)`` with ``n = tanh(x_n + r u_n)``, ``u = W h + b``.

The gates ``r, z`` are sigmoids of ``x + u``. What is kept as gates are ``r, z, n`` and ``u_n``.

References:
    Cho et al. (2014), *Learning Phrase Representations*, in the form of torch's ``nn.GRU``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.record.multiply import multiply
from curvescope.record.recurrent.cell import (
    Adjoint,
    Numbers,
    Sources,
    States,
    before,
    later,
    over_columns,
)

GATES = 3


def run(x: Tensor, w: Tensor, bias: Tensor | None, h: Tensor, c: Tensor | None) -> States:
    """All states and gates."""
    steps, batch, width = x.shape[0], x.shape[1], x.shape[2] // GATES
    gates, wt = x.new_empty(steps, batch, 4 * width), w.t().contiguous()
    out = x.new_empty(steps, batch, width)
    for a, row, h_ in zip(x.unbind(), gates.unbind(), out.unbind(), strict=True):
        u = multiply(h, wt) if bias is None else torch.addmm(bias, h, wt)
        rz, n, last = row.split([2 * width, width, width], 1)
        torch.add(a[:, : 2 * width], u[:, : 2 * width], out=rz).sigmoid_()
        last.copy_(u[:, 2 * width :])
        torch.addcmul(a[:, 2 * width :], rz[:, :width], last, out=n).tanh_()
        torch.lerp(n, h, rz[:, width:], out=h_)
        h = h_
    return out, x.new_empty(0), gates


class Slopes:
    """The derivatives at the recorded numbers."""

    def __init__(self, n: Numbers) -> None:
        self._w, self._wt = n.w, n.w.t().contiguous()
        r, z, new, last = n.gates.chunk(4, 2)
        self._r, self._z, self._last = r, z, last
        self._rz = n.gates[:, :, : 2 * r.shape[2]]
        self._rz = self._rz * (1 - self._rz)
        self._n, self._keep = 1 - new * new, 1 - z
        self._gap = before(n.out, n.h0) - new
        sr, sz = self._rz.chunk(2, 2)
        self._by_n, self._by_z, self._by_r = self._keep * self._n, sz * self._gap, sr * last
        self._numbers = n

    def push(
        self, x: Tensor, h: Tensor | None, c: Tensor | None, u: Tensor | None = None
    ) -> States:
        """Tangents of states and gates.

        ``x: [T, K, B, 3 H]`` and ``u``, of ``b + W h`` by the weights, are written over.
        """
        steps, columns, batch, wide = x.shape
        width = wide // GATES
        out = x.new_empty(steps, columns, batch, width)
        gates = x.new_zeros(steps, columns, batch, 4 * width)
        for t in range(steps):
            rz, n, last = gates[t].split([2 * width, width, width], 2)
            v = None if u is None else u[t]
            if h is not None:
                moved = multiply(h.reshape(-1, width), self._wt).view(columns, batch, wide)
                v = moved if v is None else v.add_(moved)
            if v is None:
                rz.copy_(x[t, :, :, : 2 * width])
            else:
                torch.add(x[t, :, :, : 2 * width], v[:, :, : 2 * width], out=rz)
                last.copy_(v[:, :, 2 * width :])
            rz.mul_(self._rz[t])
            torch.addcmul(x[t, :, :, 2 * width :], self._last[t], rz[:, :, :width], out=n)
            n.addcmul_(self._r[t], last).mul_(self._n[t])
            torch.mul(self._keep[t], n, out=out[t])
            out[t].addcmul_(self._gap[t], rz[:, :, width:])
            if h is not None:
                out[t].addcmul_(self._z[t], h)
            h = out[t]
        return out, x.new_empty(0), gates

    def pull(self, onto: Sources) -> Adjoint:
        """The adjoint: from ``∂/∂h`` at all times to those of ``x``, ``W h`` and ``h_0``."""
        steps, columns, batch, width = onto.shape
        shape = (steps, columns, batch, GATES * width)
        dx = onto.like.new_zeros(shape) if onto.arguments is None else onto.arguments
        du, totals = dx.new_empty(shape), dx.new_empty(onto.shape)
        carry: Tensor | None = None
        for t in reversed(range(steps)):
            dh = totals[t]
            later(onto.h, t, carry, dh)
            r, z, n = dx[t].chunk(GATES, 2)
            n.addcmul_(self._by_n[t], dh)
            z.addcmul_(self._by_z[t], dh)
            r.addcmul_(self._by_r[t], n)
            du[t, :, :, : 2 * width].copy_(dx[t, :, :, : 2 * width])
            last = du[t, :, :, 2 * width :]
            torch.mul(self._r[t], n, out=last)
            if onto.hidden is not None:
                last.add_(onto.hidden[t])
            back = multiply(du[t].view(-1, GATES * width), self._w)
            carry = back.view(columns, batch, width)
            carry.addcmul_(self._z[t], dh)
        assert carry is not None
        return Adjoint(dx, du, carry, None, totals, None)

    def bend(self, totals: Tensor, cells: Tensor) -> Bends:
        """The second derivatives, weighted with the adjoint of the recorded pass."""
        return Bends(self, self._numbers, totals)


class Bends:
    """How the adjoint's slopes change with states and gates, times the adjoint."""

    def __init__(self, slopes: Slopes, n: Numbers, totals: Tensor) -> None:
        r, z, new, last = n.gates.chunk(4, 2)
        sr, sz = slopes._rz.chunk(2, 2)
        dh = totals[:, 0]
        self._state = dh
        self._n_z, self._n_n = -dh * slopes._n, -2 * dh * new * slopes._keep
        self._z_z, self._z_h = dh * (1 - 2 * z) * slopes._gap, dh * sz
        self._last = dh * slopes._by_n  # the adjoint of n's argument
        self._r_r, self._r_u = self._last * (1 - 2 * r) * last, self._last * sr

    def sources(
        self, gates: Tensor, cells: Tensor, out: Tensor | None, c0: Tensor | None, h0: Tensor | None
    ) -> Sources:
        """What the tangents of states and gates ``[T, K, B, …]`` put onto the adjoint's."""
        r, z, n, u = gates.chunk(4, 3)
        steps, columns, batch, width = r.shape
        arguments = gates.new_empty(steps, columns, batch, GATES * width)
        dr, dz, dn = arguments.chunk(GATES, 3)
        torch.mul(over_columns(self._n_z), z, out=dn).addcmul_(over_columns(self._n_n), n)
        torch.mul(over_columns(self._z_z), z, out=dz).addcmul_(over_columns(self._z_h), n, value=-1)
        if out is not None:
            dz[1:].addcmul_(over_columns(self._z_h[1:]), out[:-1])
        if h0 is not None:
            dz[0].addcmul_(self._z_h[0], h0)
        torch.mul(over_columns(self._r_r), r, out=dr).addcmul_(over_columns(self._r_u), u)
        moved = over_columns(self._state) * z
        onto = torch.cat([moved[1:], torch.zeros_like(moved[:1])])
        return Sources(onto, None, arguments, over_columns(self._last) * r, None, moved[0])
