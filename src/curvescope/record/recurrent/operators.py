"""A recurrent layer in one direction as two operators, forwards and backwards, with their rules.

``recurrent`` takes what the inputs contribute to the arguments of the gates at all times, one
matrix product outside of it, and returns all states. ``recurrent_backward`` returns the derivatives
by these arguments, from which that of the weights is one matrix product as well. What is left
inside are the loops over time, which cost a small product and a few short operations a step.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from curvescope.record.multiply import multiply
from curvescope.record.recurrent import gru, lstm, plain
from curvescope.record.recurrent.cell import Adjoint, Numbers, Sources, before
from curvescope.record.rules.step import Call, LinearStep, Outputs, make_step, rule

CELLS: dict[str, Any] = {
    "lstm": SimpleNamespace(run=lstm.run, slopes=lstm.Slopes),
    "gru": SimpleNamespace(run=gru.run, slopes=gru.Slopes),
    "tanh": plain.TANH,
    "relu": plain.RELU,
}


@torch.library.custom_op("curvescope::recurrent", mutates_args=())
def recurrent(
    kind: str, x: Tensor, w: Tensor, bias: Tensor | None, h0: Tensor, c0: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """``h``, ``c`` and the gates at all times, ``[T, B, …]``, from ``x: [T, B, G H]``."""
    states: tuple[Tensor, Tensor, Tensor] = CELLS[kind].run(x, w, bias, h0, c0)
    return states


@torch.library.custom_op("curvescope::recurrent_backward", mutates_args=())
def recurrent_backward(
    kind: str, by_h: Tensor | None, by_c: Tensor | None, w: Tensor, h0: Tensor, c0: Tensor | None,
    out: Tensor, cells: Tensor, gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Derivatives by ``x``, ``W h``, ``h_0`` and ``c_0``; and by all states, for the second ones."""
    numbers = Numbers(w, h0, c0, out, cells, gates)
    onto = Sources(*(None if g is None else g[:, None] for g in (by_h, by_c)))
    adjoint: Adjoint = CELLS[kind].slopes(numbers).pull(onto)
    empty = out.new_empty(0)
    dx, dh0, totals = adjoint.x[:, 0], adjoint.h0[0], adjoint.totals[:, 0]
    hidden = empty if adjoint.hidden is None else adjoint.hidden[:, 0]
    dc0 = empty.clone() if adjoint.c0 is None else adjoint.c0[0]
    return dx, hidden, dh0, dc0, totals, (
        empty.clone() if adjoint.cells is None else adjoint.cells[:, 0]
    )  # fmt: skip


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    kind, _, w, _, h0, c0 = inputs
    ctx.kind = kind
    ctx.save_for_backward(w, h0, c0, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, by_h: Any, by_c: Any, _: Any) -> Any:
    w, h0, c0, out, cells, gates = ctx.saved_tensors
    if by_h is None and by_c is None:
        return (None,) * 6
    dx, hidden, dh0, dc0, *_ = recurrent_backward(
        ctx.kind, by_h, by_c, w, h0, c0, out, cells, gates
    )
    hidden = hidden if ctx.kind == "gru" else dx
    _, _, needs_w, needs_bias, _, _ = ctx.needs_input_grad
    dw = hidden.flatten(0, 1).t() @ before(out, h0).flatten(0, 1) if needs_w else None
    bias = hidden.sum((0, 1)) if needs_bias else None
    return None, dx, dw, bias, dh0, (None if c0 is None else dc0)


recurrent.register_autograd(_backward, setup_context=_save)


# Rules ------------------------------------------------------------------------------------------


@rule(torch.ops.curvescope.recurrent.default)
def _recurrent(call: Call) -> LinearStep:
    kind, x, w, _, h0, c0 = (leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in call.leaves)
    out, cells, gates = (t.detach() for t in call.out)
    slopes = CELLS[kind].slopes(Numbers(w, h0, c0, out, cells, gates))
    states, steps, batch, wide = before(out, h0).flatten(0, 1), *x.shape

    def block(_: None, tx: Any, tw: Any, tb: Any = None, th: Any = None, tc: Any = None) -> Outputs:
        columns = next(len(t) for t in (tx, tw, tb, th, tc) if t is not None)
        given = None if tx is None else _time_first(tx)
        moved = None if tw is None else _rows_first(multiply(states, _side_by_side(tw)), steps, columns)
        if tb is not None:
            moved = tb[:, None] if moved is None else moved.add_(tb[:, None])
            moved = moved.expand(steps, columns, batch, wide)
        if kind != "gru":
            given = moved if given is None else given if moved is None else given.add_(moved)
            moved = None
        if given is None:
            given = x.new_zeros(steps, columns, batch, wide)
        hidden = (moved.contiguous(),) if moved is not None else ()
        made = slopes.push(given, th, tc, *hidden)
        return tuple(t.transpose(0, 1) if t.ndim == 4 else None for t in made)

    return _both(block)


@rule(torch.ops.curvescope.recurrent_backward.default)
def _recurrent_backward(call: Call) -> LinearStep:
    kind, *_ = call.leaves
    w, h0, c0, out, cells, gates = (t if t is None else t.detach() for t in call.leaves[3:])
    slopes = CELLS[kind].slopes(Numbers(w, h0, c0, out, cells, gates))
    dx, hidden, _, _, totals, at_cells = call.out
    hidden = hidden if kind == "gru" else dx
    steps, batch, width = out.shape
    second = any(i > 2 for i in call.active)
    bends = slopes.bend(totals[:, None], at_cells[:, None] if at_cells.ndim > 1 else at_cells) if second else None

    def block(_: None, *tangents: Any) -> Outputs:
        tangents = (*tangents, *(None,) * (8 - len(tangents)))
        by_h, by_c, tw, th, tc, tout, tcells, tgates = tangents
        columns = next(len(t) for t in tangents if t is not None)
        shape = (steps, columns, batch, width)
        sums: dict[str, Tensor | None] = {
            "h": None if by_h is None else _time_first(by_h),
            "c": None if by_c is None else _time_first(by_c),
        }

        def add(name: str, t: Tensor | None) -> None:
            old = sums.get(name)
            sums[name] = t if old is None else old if t is None else old.add_(t)

        if tw is not None:
            wide = tw.transpose(0, 1).flatten(1)
            back = _rows_first(multiply(hidden.flatten(0, 1), wide), steps, columns)
            add("first_h", back[0])
            add("h", torch.cat([back[1:], torch.zeros_like(back[:1])]))
        if bends is not None and any(t is not None for t in (th, tc, tout, tcells, tgates)):
            more = bends.sources(
                _full(tgates, (steps, columns, batch, gates.shape[-1]), gates),
                _full(tcells, shape, gates), None if tout is None else tout.transpose(0, 1), tc, th,
            )  # fmt: skip
            for name in ("h", "c", "arguments", "hidden", "first", "first_h"):
                add(name, getattr(more, name))
        if sums["h"] is None and sums["c"] is None:
            sums["h"] = out.new_zeros(shape)
        adjoint = slopes.pull(Sources(**sums))
        first_h, first = sums.get("first_h"), sums.get("first")
        dh0 = adjoint.h0 if first_h is None else adjoint.h0 + first_h
        dc0 = adjoint.c0 if first is None or adjoint.c0 is None else adjoint.c0 + first
        made = (adjoint.x, adjoint.hidden)
        return (*(None if t is None else t.transpose(0, 1) for t in made), dh0, dc0, None, None)

    return _both(block)


def _both(block: Any) -> LinearStep:
    """A step from its form for columns: a single tangent is one column."""

    def single(*tangents: Tensor | None) -> Outputs:
        made = block(*(None if t is None else t[None] for t in tangents))
        return tuple(None if t is None else t[0] for t in made)

    return make_step(single, block)


def _time_first(t: Tensor) -> Tensor:
    """``[K, T, …]`` as ``[T, K, …]`` in memory of its own."""
    return t.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def _full(t: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The tangent with the time first, or zeros."""
    return like.new_zeros(shape) if t is None else t.transpose(0, 1)


def _side_by_side(t: Tensor) -> Tensor:
    """``[K, m, n]`` as ``[n, K m]``."""
    return t.flatten(0, 1).t()


def _rows_first(product: Tensor, steps: int, columns: int) -> Tensor:
    """``[T B, K n]`` as ``[T, K, B, n]`` in memory of its own."""
    t = product.view(steps, product.shape[0] // steps, columns, -1)
    return t.transpose(1, 2).contiguous() if columns > 1 else t.transpose(1, 2)
