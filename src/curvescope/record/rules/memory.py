"""Reading and writing a part of some memory, for operations that write to their arguments.

The tangent of a memory is one row of numbers, in the order in which they lie there, so that a view
of the memory is the same view of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope.record.rules.step import Call, LinearStep, Outputs, make_step, rule

aten = torch.ops.aten


@dataclass(frozen=True)
class Place:
    """Where the numbers of a tensor lie in a memory that has room for ``room`` of them."""

    room: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, t: Tensor) -> Place:
        """The place of a tensor in its own memory."""
        room = t.untyped_storage().nbytes() // t.element_size()
        return cls(room, tuple(t.shape), tuple(t.stride()), int(t.storage_offset()))

    def view(self, rows: Tensor) -> Tensor:
        """The part of ``rows: [room]`` or ``[K, room]``, which is contiguous."""
        if rows.ndim == 1:
            return rows.as_strided(self.size, self.stride, self.offset)
        return rows.as_strided((len(rows), *self.size), (self.room, *self.stride), self.offset)


def read(place: Place) -> Any:
    """The operation that takes a tensor out of a memory; recorded as such, never run."""
    raise NotImplementedError


def write(place: Place) -> Any:
    """The operation that puts a tensor into a memory; recorded as such, never run."""
    raise NotImplementedError


@rule(read)
def _read(call: Call) -> LinearStep:
    view = call.args[0].view
    return make_step(lambda t: view(t), lambda t: view(t))


@rule(write)
def _write(call: Call) -> LinearStep:
    place: Place = call.args[0]

    def put(rows: Tensor, t: Tensor | None) -> Tensor:
        part = place.view(rows)
        if t is None:
            part.zero_()
        else:
            part.copy_(t)
        return rows

    def single(rows: Tensor | None, t: Tensor | None) -> Outputs:
        return put(t.new_zeros(place.room) if rows is None else rows.clone(), t)  # type: ignore[union-attr]

    def block(rows: Tensor | None, t: Tensor | None) -> Outputs:
        if rows is None:
            return put(t.new_zeros(t.shape[0], place.room), t)  # type: ignore[union-attr]
        return put(rows.clone(), t)

    def inplace(rows: Tensor | None, t: Tensor | None) -> Outputs:
        if rows is not None:
            return put(rows, t)
        assert t is not None
        return (single if t.ndim == len(place.size) else block)(None, t)

    return make_step(single, block, fresh=True, inplace=inplace)


@rule(aten.copy.default)
def _copy(call: Call) -> LinearStep:
    """What was there does not count."""
    shape, dtype = tuple(call.out.shape), call.out.dtype

    def block(_: Tensor | None, t: Tensor | None = None, *__: Tensor | None) -> Outputs:
        if t is None:
            return None
        missing = len(shape) + 1 - t.ndim
        t = t.reshape(t.shape[0], *(1,) * missing, *t.shape[1:])
        return t.expand(t.shape[0], *shape).to(dtype)

    return make_step(lambda _, t=None, *__: None if t is None else t.expand(shape).to(dtype), block)


@rule(aten.fill.Scalar, aten.zero.default)
def _fill(call: Call) -> LinearStep:
    return make_step(lambda *_: None, lambda *_: None)
