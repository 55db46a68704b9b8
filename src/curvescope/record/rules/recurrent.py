"""Recurrent layers: tangents go once through the times, and back.

What the weights' own tangents contribute at all times is one matrix product before the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from curvescope.record.multiply import multiply
from curvescope.record.recurrent.cell import Numbers, Sources, before
from curvescope.record.recurrent.operators import CELLS
from curvescope.record.rules.step import Call, LinearStep, Outputs, make_step, rule

Maybe = Tensor | None


@rule(torch.ops.curvescope.recurrent.default)
def _recurrent(call: Call) -> LinearStep:
    kind, x = call.leaves[:2]
    w, h0, c0 = (_numbers(call.leaves[i]) for i in (2, 4, 5))
    numbers = Numbers(w, h0, c0, *map(_numbers, call.out))
    slopes = CELLS[kind].slopes(numbers)
    states, (steps, batch, wide) = before(numbers.out, h0).flatten(0, 1), x.shape

    def block(
        _: None, x: Maybe, w: Maybe, b: Maybe = None, h: Maybe = None, c: Maybe = None
    ) -> Any:
        columns = _columns(x, w, b, h, c)
        shape = (steps, columns, batch, wide)
        given = None if x is None else _time_first(x)
        moved = None  # what weights and bias do to W h + b
        if w is not None:
            moved = _by_columns(multiply(states, w.flatten(0, 1).t()), steps, columns)
        if b is not None:  # in memory of its own: the loops write over what they are given
            by_bias = b[:, None].expand(shape).clone(memory_format=torch.contiguous_format)
            moved = by_bias if moved is None else moved.add_(by_bias)
        if kind == "gru":
            more = () if moved is None else (moved.contiguous(),)
        else:
            given, more = _sum(given, moved), ()
        given = numbers.out.new_zeros(shape) if given is None else given.contiguous()
        made = slopes.push(given, h, c, *more)
        return tuple(t.transpose(0, 1) if t.ndim == 4 else None for t in made)

    return _step(block)


@rule(torch.ops.curvescope.recurrent_backward.default)
def _recurrent_backward(call: Call) -> LinearStep:
    kind = call.leaves[0]
    dx, hidden, _, _, totals, cells, *made = call.out
    known = tuple(made) if kind == "lstm" else None
    numbers = replace(Numbers(*(_numbers(leaf) for leaf in call.leaves[3:])), slopes=known)
    slopes = CELLS[kind].slopes(numbers)
    hidden = (hidden if kind == "gru" else dx).flatten(0, 1)
    (steps, batch, width), gates = numbers.out.shape, numbers.gates
    bends = None  # where only the cotangent varies
    if any(i > 2 for i in call.active):
        bends = slopes.bend(totals[:, None], cells[:, None] if cells.ndim == 3 else cells)

    def block(_: None, *tangents: Maybe) -> Any:
        columns = _columns(*tangents)
        given: list[Maybe] = [*tangents, *[None] * (8 - len(tangents))]
        (by_h, by_c, w), states = given[:3], given[3:]
        shape = (steps, columns, batch, width)
        onto = Sources(*(None if t is None else _time_first(t) for t in (by_h, by_c)))
        if w is not None:
            back = multiply(hidden, w.transpose(0, 1).flatten(1))
            _onto_states(onto, _by_columns(back, steps, columns))
        if bends is not None and any(t is not None for t in states):
            h0, c0, out, cells, gated = states
            added = bends.sources(
                _full(gated, (*shape[:3], gates.shape[-1]), gates), _full(cells, shape, gates),
                None if out is None else out.transpose(0, 1), c0, h0,
            )  # fmt: skip
            for name, t in vars(added).items():
                setattr(onto, name, _sum(getattr(onto, name), t))
        if onto.h is None and onto.c is None:
            onto.h = numbers.out.new_zeros(shape)
        adjoint = slopes.pull(onto)
        first = (_sum(adjoint.h0, onto.first_h), _sum(adjoint.c0, onto.first))
        by_x, by_hidden = (
            None if t is None else t.transpose(0, 1) for t in (adjoint.x, adjoint.hidden)
        )
        return by_x, by_hidden, *first, None, None, None, None

    return _step(block)


def _onto_states(onto: Sources, back: Tensor) -> None:
    """What comes back from the steps ``[T, K, B, H]`` to the states that they began with."""
    onto.first_h = back[0]
    onto.h = _sum(onto.h, torch.cat([back[1:], torch.zeros_like(back[:1])]))


def _step(block: Callable[..., Any]) -> LinearStep:
    """A step from its form for columns: a single tangent is one column."""

    def single(*tangents: Maybe) -> Outputs:
        made = block(*(None if t is None else t[None] for t in tangents))
        return tuple(None if t is None else t[0] for t in made)

    return make_step(single, block)


def _numbers(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _columns(*tangents: Maybe) -> int:
    return next(len(t) for t in tangents if t is not None)


def _sum(a: Maybe, b: Maybe) -> Maybe:
    return b if a is None else a if b is None else a + b


def _time_first(t: Tensor) -> Tensor:
    """``[K, T, …]`` as ``[T, K, …]`` in memory of its own."""
    return t.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def _full(t: Maybe, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """The tangent with the time first, or zeros."""
    return like.new_zeros(shape) if t is None else t.transpose(0, 1)


def _by_columns(product: Tensor, steps: int, columns: int) -> Tensor:
    """``[T B, K n]`` as ``[T, K, B, n]``."""
    t = product.view(steps, product.shape[0] // steps, columns, -1).transpose(1, 2)
    return t.contiguous()
