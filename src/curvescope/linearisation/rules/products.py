"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from curvescope.linearisation.rules.generic import generic
from curvescope.linearisation.rules.step import Call, LinearStep, Outputs, lift, make_step, rule

aten = torch.ops.aten


def _product_rule(left: Tensor | None, right: Tensor | None) -> Callable[..., Tensor]:
    """``(ȧ, ḃ, start) ↦ start + ȧ b + a ḃ``, with ``left = b`` and ``right = a``.

    Every term after the first is accumulated inside the matrix product, in memory that is ours. In
    block form the columns of ``ȧ`` fold into the rows of one product; those of ``ḃ`` make a batch.
    """

    def combine(ta: Tensor | None, tb: Tensor | None, start: Tensor | None = None) -> Tensor:
        total = None
        if tb is not None:
            assert right is not None
            total = _matmul(right, tb, start)
        if ta is not None:
            assert left is not None
            if total is None:
                return _matmul(ta, left, start)
            _accumulate(total, ta, left)
        assert total is not None
        return total

    return combine


def _matmul(a: Tensor, b: Tensor, start: Tensor | None) -> Tensor:
    """``start + a b`` in fresh memory; ``start`` is a row, or one row per column."""
    if start is None:
        return torch.matmul(a, b)
    if a.ndim == 2 and b.ndim == 2:
        return torch.addmm(start, a, b)
    return torch.matmul(a, b).add_(start)


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a b``."""
    if total.ndim == 2:
        total.addmm_(a, b)
    elif total.ndim == 3 and b.ndim == 2 and a.is_contiguous() and total.is_contiguous():
        total.flatten(0, 1).addmm_(a.flatten(0, 1), b)
    elif total.ndim == 3:
        shape = total.shape[:1]
        total.baddbmm_(a.expand(*shape, *a.shape[-2:]), b.expand(*shape, *b.shape[-2:]))
    else:
        total.add_(torch.matmul(a, b))


@rule(aten.mm.default, aten.bmm.default)
def _mm(call: Call) -> LinearStep:
    a, b = call.leaves
    left = b.detach() if 0 in call.active else None
    right = a.detach() if 1 in call.active else None
    combine = _product_rule(left, right)
    return make_step(combine, combine)


@rule(aten.addmm.default)
def _addmm(call: Call) -> LinearStep:
    if len(call.leaves) > 3:  # scaled forms are rare
        return generic(call)
    a, b = call.leaves[1:]
    left = b.detach() if 1 in call.active else None
    right = a.detach() if 2 in call.active else None
    combine = _product_rule(left, right)
    shape = tuple(call.out.shape)

    def single(bias: Tensor | None, ta: Tensor | None, tb: Tensor | None) -> Outputs:
        if ta is None and tb is None:
            return bias.expand(shape)  # type: ignore[union-attr]
        return combine(ta, tb, bias)

    def block(bias: Tensor | None, ta: Tensor | None, tb: Tensor | None) -> Outputs:
        start = None if bias is None else lift(bias, 2)
        if ta is None and tb is None:
            return start.expand(start.shape[0], *shape)  # type: ignore[union-attr]
        return combine(ta, tb, start)

    return make_step(single, block)
