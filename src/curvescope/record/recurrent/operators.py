"""A recurrent layer in one direction as two operators, forwards and backwards.

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

from curvescope.record.recurrent import gru, lstm, plain
from curvescope.record.recurrent.cell import Adjoint, Numbers, Sources, before

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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Derivatives by ``x``, ``W h``, ``h_0``, ``c_0``; by all states, and slopes, for the second.

    What there is not is empty.
    """
    numbers = Numbers(w, h0, c0, out, cells, gates)
    onto = Sources(*(None if g is None else g[:, None] for g in (by_h, by_c)))
    slopes = CELLS[kind].slopes(numbers)
    adjoint: Adjoint = slopes.pull(onto)
    empty = out.new_empty(0)
    dx, dh0, totals = adjoint.x[:, 0], adjoint.h0[0], adjoint.totals[:, 0]
    hidden = empty if adjoint.hidden is None else adjoint.hidden[:, 0]
    dc0 = empty.clone() if adjoint.c0 is None else adjoint.c0[0]
    cells = empty.clone() if adjoint.cells is None else adjoint.cells[:, 0]
    reusable = slopes.reusable() if kind == "lstm" else (empty.clone(), empty.clone())
    return dx, hidden, dh0, dc0, totals, cells, *reusable


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
