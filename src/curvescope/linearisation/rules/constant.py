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

_WORTH = 0.95  # the share of lines that must remain at most for the change to be made
_ALIGN = 16  # lines are filled up with zeros to a multiple of this, which matrix products like
_LOOK = 8  # lines that are compared before the whole matrix is


@dataclass(frozen=True)
class Lines:
    """Which lines of an axis vary, which do not, and the values of the latter."""

    varying: Tensor  # indices
    fixed: Tensor  # indices
    values: Tensor  # [fixed]
    zero: bool  # whether all values are 0
    size: int  # lines of the smaller matrix

    def gather(self, t: Tensor, dim: int) -> Tensor:
        """``(t', cᵀ t_c, 0)`` along ``dim``, -1 or -2."""
        shape = list(t.shape)
        shape[dim] = self.size
        out = t.new_zeros(shape)
        count = len(self.varying)
        out.narrow(dim, 0, count).copy_(t.index_select(dim, self.varying))
        if not self.zero:
            rest = t.index_select(dim, self.fixed)
            total = self.values @ rest if dim == -2 else rest @ self.values
            out.select(dim, count).copy_(total)
        return out

    def spread(self, t: Tensor, dim: int) -> Tensor:
        """The results of all lines from those of the smaller matrix, along ``dim``, -1 or -2."""
        count = len(self.varying)
        shape = list(t.shape)
        shape[dim] = count + len(self.fixed)
        out = t.new_zeros(shape)
        out.index_copy_(dim, self.varying, t.narrow(dim, 0, count))
        if not self.zero:
            last = t.narrow(dim, count, 1)
            values = self.values[:, None] if dim == -2 else self.values
            out.index_copy_(dim, self.fixed, last * values)
        return out


@dataclass(frozen=True)
class Smaller:
    """A matrix without its constant lines along ``axis`` (0: rows, 1: columns)."""

    matrix: Tensor
    axis: int
    lines: Lines


Known = dict[tuple[int, torch.Size, tuple[int, ...], int], Smaller | None]


def smaller(matrix: Tensor | None, known: Known) -> Smaller | None:
    """The matrix without its constant lines; None if that would save little.

    ``known`` remembers what was found for the memory behind a matrix, so that several steps share
    the smaller one, also when one of them uses its transpose.
    """
    if matrix is None or matrix.ndim != 2 or not matrix.is_floating_point():
        return None
    upright = matrix.is_contiguous() or not matrix.T.is_contiguous()
    stored = matrix if upright else matrix.T
    key = (stored.data_ptr(), stored.shape, stored.stride(), stored._version)
    if key not in known:
        known[key] = _without(stored, 1) or _without(stored, 0)
    found = known[key]
    if found is None or upright:
        return found
    return Smaller(found.matrix.T, 1 - found.axis, found.lines)


def _without(matrix: Tensor, axis: int) -> Smaller | None:
    count, across = matrix.shape[axis], matrix.shape[1 - axis]
    if across < 2 or _aligned(1) > _WORTH * count:
        return None
    few = matrix.narrow(1 - axis, 0, min(_LOOK, across))
    if _aligned(int((few.amax(1 - axis) != few.amin(1 - axis)).sum()) + 1) > _WORTH * count:
        return None
    low, high = matrix.aminmax(dim=1 - axis)
    varies = low != high  # a NaN varies
    if _aligned(int(varies.sum()) + 1) > _WORTH * count:
        return None
    varying, fixed = varies.nonzero()[:, 0], (~varies).nonzero()[:, 0]
    values = low[fixed]
    size = _aligned(len(varying) + 1)
    shape = list(matrix.shape)
    shape[axis] = size
    kept = matrix.new_zeros(shape)
    kept.narrow(axis, 0, len(varying)).copy_(matrix.index_select(axis, varying))
    kept.select(axis, len(varying)).fill_(1.0)
    return Smaller(kept, axis, Lines(varying, fixed, values, not bool(values.any()), size))


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN
