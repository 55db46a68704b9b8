"""Constant lines of a constant matrix: the border of images, dead units.

If columns of ``x: [B, n]`` are the same in every row, ``x = (x', 1 cᵀ)`` up to their order, and all
of them together are worth one column of ones: with ``x'' = (x', 1)``

    x b = x'' gather(b),    gather(b) = (b', cᵀ b_c)        the lines are summed over
    a x = spread(a x''),    spread(y)_c = y_last cᵀ         the lines are results

exactly. Looking for them costs about a pass over the matrix, which pays when it is used often.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORTH = 0.95  # the share of lines that must remain at most for the change to be made
_ALIGN = 16  # lines are filled up with zeros to a multiple of this, which matrix products like
_LOOK = 8  # lines that are compared before the whole matrix is


@dataclass(frozen=True)
class Lines:
    """Which lines of an axis vary, which do not, and the values of the latter."""

    varying: Tensor  # indices
    fixed: Tensor  # indices
    values: Tensor  # [fixed]
    zero: bool  # whether all values are 0
    place: Tensor  # of every line in the smaller matrix, the one of the constants last
    factor: Tensor  # of every line: its constant value, or 1

    @classmethod
    def of(cls, matrix: Tensor) -> Lines | None:
        """The columns of ``[L, n]``; None if leaving the constant ones out would save little."""
        low, high = matrix.aminmax(dim=0)
        varies = low != high  # a NaN varies
        if aligned(int(varies.sum()) + 1) > WORTH * matrix.shape[1]:
            return None
        varying, fixed = varies.nonzero()[:, 0], (~varies).nonzero()[:, 0]
        place = torch.full_like(varies, len(varying), dtype=torch.int64)
        place[varying] = torch.arange(len(varying), device=varies.device)
        values = low[fixed]
        factor = torch.where(varies, 1.0, low)
        return cls(varying, fixed, values, not bool(values.any()), place, factor)

    @property
    def size(self) -> int:
        """How many lines the smaller matrix has."""
        return aligned(len(self.varying) + 1)

    def without(self, matrix: Tensor, dim: int) -> Tensor:
        """``(x', 1, 0)``: the varying lines, a line of ones, and zeros to fill up."""
        room = self._room(matrix, dim)
        room.narrow(dim, 0, len(self.varying)).copy_(matrix.index_select(dim, self.varying))
        room.select(dim, len(self.varying)).fill_(1.0)
        return room

    def gather(self, t: Tensor, dim: int) -> Tensor:
        """``(t', cᵀ t_c, 0)`` along ``dim``, -1 or -2."""
        out = self._room(t, dim)
        out.narrow(dim, 0, len(self.varying)).copy_(t.index_select(dim, self.varying))
        if not self.zero:
            rest = t.index_select(dim, self.fixed)
            total = self.values @ rest if dim == -2 else rest @ self.values
            out.select(dim, len(self.varying)).copy_(total)
        return out

    def spread(self, t: Tensor, dim: int) -> Tensor:
        """The results of all lines from those of the smaller matrix, along ``dim``, -1 or -2."""
        factor = self.factor[:, None] if dim == -2 else self.factor
        return t.index_select(dim, self.place).mul_(factor)

    def _room(self, like: Tensor, dim: int) -> Tensor:
        shape = list(like.shape)
        shape[dim] = self.size
        return like.new_zeros(shape)


@dataclass(frozen=True)
class Smaller:
    """A matrix without its constant lines along ``axis`` (0: rows, 1: columns)."""

    matrix: Tensor
    axis: int
    lines: Lines


Cache = dict[tuple[int, torch.Size, tuple[int, ...], int], Smaller | None]


def smaller(matrix: Tensor | None, cache: Cache) -> Smaller | None:
    """The matrix without its constant lines; None if that would save little.

    ``cache`` holds the answer for the memory behind a matrix, so that several steps share the
    smaller one, also when one of them uses its transpose.
    """
    if matrix is None or matrix.ndim != 2 or not matrix.is_floating_point():
        return None
    upright = matrix.is_contiguous() or not matrix.T.is_contiguous()
    stored = matrix if upright else matrix.T
    key = (stored.data_ptr(), stored.shape, stored.stride(), stored._version)
    if key not in cache:
        cache[key] = _without(stored, 1) or _without(stored, 0)
    result = cache[key]
    if result is None or upright:
        return result
    return Smaller(result.matrix.T, 1 - result.axis, result.lines)


def _without(matrix: Tensor, axis: int) -> Smaller | None:
    columns = matrix if axis == 1 else matrix.T
    if len(columns) < 2:
        return None
    low, high = columns[:_LOOK].aminmax(dim=0)
    if aligned(int((low != high).sum()) + 1) > WORTH * columns.shape[1]:
        return None
    lines = Lines.of(columns)
    return None if lines is None else Smaller(lines.without(matrix, axis), axis, lines)


def aligned(count: int) -> int:
    """The next multiple of what matrix products like.

    >>> aligned(17)
    32
    """
    return -(-count // _ALIGN) * _ALIGN
