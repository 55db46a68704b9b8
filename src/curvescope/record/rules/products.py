"""Matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.record.constant import Cache, Smaller, smaller
from curvescope.record.multiply import add_product, by_onednn, multiply
from curvescope.record.rules.generic import generic
from curvescope.record.rules.step import (
    Call,
    LinearStep,
    Outputs,
    fresh_copy,
    lift,
    make_step,
    rule,
    total,
)

aten = torch.ops.aten


class _Product:
    """``(ȧ, ḃ, start) ↦ start + ȧ b + a ḃ``, with ``left = b`` and ``right = a``.

    Every term after the first is accumulated inside the matrix product, in memory that is ours. In
    block form the columns of ``ȧ`` fold into the rows of one product; those of ``ḃ`` make a batch.
    """

    def __init__(self, left: Tensor | None, right: Tensor | None) -> None:
        self._left, self._right = left, right

    def __call__(self, ta: Tensor | None, tb: Tensor | None, start: Tensor | None = None) -> Tensor:
        if ta is not None and tb is not None and self._is_one(ta, tb):
            assert self._left is not None
            assert self._right is not None
            return _matmul(_beside(ta, self._right), _beside(self._left.t(), tb.t()).t(), start)
        total = None
        if tb is not None:
            total = self._from_right(tb, start)
        if ta is not None:
            if total is None:
                return self._from_left(ta, start)
            self._add_left(total, ta)
        assert total is not None
        return total

    def _is_one(self, ta: Tensor, tb: Tensor) -> bool:
        """Whether both terms are best taken as one: ``(ȧ a) (b over ḃ)``.

        A second result would be larger than the factors that are put together.
        """
        if self._left is None or self._right is None or ta.ndim > 2 or tb.ndim > 2:
            return False
        (m, k), n = ta.shape, tb.shape[1]
        return m * n > (m + n) * k and by_onednn(ta, tb)

    def _from_right(self, tb: Tensor, start: Tensor | None) -> Tensor:
        assert self._right is not None
        return _matmul(self._right, tb, start)

    def _from_left(self, ta: Tensor, start: Tensor | None) -> Tensor:
        assert self._left is not None
        return _matmul(ta, self._left, start)

    def _add_left(self, total: Tensor, ta: Tensor) -> None:
        assert self._left is not None
        _accumulate(total, ta, self._left)

    def condensed(self, cache: Cache) -> _Product:
        """The same without the constant lines of the factors, where they are worth it."""
        left, right = smaller(self._left, cache), smaller(self._right, cache)
        if left is None and right is None:
            return self
        return _Condensed(self._left, self._right, left, right)


class _Condensed(_Product):
    """A product whose factors, or one of them, have lost their constant lines."""

    def __init__(
        self, left: Tensor | None, right: Tensor | None, b: Smaller | None, a: Smaller | None
    ) -> None:
        super().__init__(None if b is not None else left, None if a is not None else right)
        self._b, self._a = b, a

    def _from_right(self, tb: Tensor, start: Tensor | None) -> Tensor:
        if self._a is None:
            return super()._from_right(tb, start)
        if self._a.axis == 1:
            return _matmul(self._a.matrix, self._a.lines.gather(tb, -2), start)
        total = self._a.lines.spread(multiply(self._a.matrix, tb), -2)
        return total if start is None else total.add_(start)

    def _from_left(self, ta: Tensor, start: Tensor | None) -> Tensor:
        if self._b is None:
            return super()._from_left(ta, start)
        if self._b.axis == 0:
            return _matmul(self._b.lines.gather(ta, -1), self._b.matrix, start)
        total = self._b.lines.spread(multiply(ta, self._b.matrix), -1)
        return total if start is None else total.add_(start)

    def _add_left(self, total: Tensor, ta: Tensor) -> None:
        if self._b is None:
            super()._add_left(total, ta)
        elif self._b.axis == 0:
            _accumulate(total, self._b.lines.gather(ta, -1), self._b.matrix)
        else:
            total.add_(self._from_left(ta, None))


def _beside(a: Tensor, b: Tensor) -> Tensor:
    """``(a b)``, by rows or by columns as they lie in memory."""
    if a.stride(0) == b.stride(0) == 1:
        return torch.cat([a.t(), b.t()]).t()
    return torch.cat([a, b], 1)


def _matmul(a: Tensor, b: Tensor, start: Tensor | None) -> Tensor:
    """``start + a b`` in fresh memory; ``start`` is a row, or one row per column."""
    if start is None:
        return multiply(a, b)
    if a.ndim == 2 and b.ndim == 2 and not by_onednn(a, b):
        return torch.addmm(start, a, b)
    return multiply(a, b).add_(start)


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a b``."""
    if total.ndim == 2:
        add_product(total, a, b)
    elif total.ndim == 3 and b.ndim == 2 and a.is_contiguous() and total.is_contiguous():
        add_product(total.flatten(0, 1), a.flatten(0, 1), b)
    elif total.ndim == 3 and not by_onednn(a, b):
        shape = total.shape[:1]
        total.baddbmm_(a.expand(*shape, *a.shape[-2:]), b.expand(*shape, *b.shape[-2:]))
    else:
        total.add_(multiply(a, b))


@rule(aten.mm.default, aten.bmm.default)
def _mm(call: Call) -> LinearStep:
    a, b = call.leaves
    left = b.detach() if 0 in call.active else None
    right = a.detach() if 1 in call.active else None
    return _step(_Product(left, right))


def _step(product: _Product) -> LinearStep:
    def condensed(cache: Cache) -> LinearStep:
        return _step(product.condensed(cache))

    return LinearStep(product, product, condensed, fresh=True)


@rule(aten.addmm.default)
def _addmm(call: Call) -> LinearStep:
    if len(call.leaves) > 3:  # scaled forms are rare
        return generic(call)
    a, b = call.leaves[1:]
    left = b.detach() if 1 in call.active else None
    right = a.detach() if 2 in call.active else None
    return _biased(_Product(left, right), tuple(call.out.shape))


def _biased(product: _Product, shape: tuple[int, ...]) -> LinearStep:
    def single(bias: Tensor | None, ta: Tensor | None, tb: Tensor | None) -> Outputs:
        if ta is None and tb is None:
            return fresh_copy(bias.expand(shape))  # type: ignore[union-attr]
        return product(ta, tb, bias)

    def block(bias: Tensor | None, ta: Tensor | None, tb: Tensor | None) -> Outputs:
        start = None if bias is None else lift(bias, 2)
        if ta is None and tb is None:
            return fresh_copy(start.expand(start.shape[0], *shape))  # type: ignore[union-attr]
        return product(ta, tb, start)

    def condensed(cache: Cache) -> LinearStep:
        return _biased(product.condensed(cache), shape)

    return LinearStep(single, block, condensed, fresh=True)


@rule(aten._grouped_mm.default)
def _grouped(call: Call) -> LinearStep:
    """One matrix product for each group of rows, as experts take them: linear in each factor.

    The kernel wants its factors in memory as they were recorded.
    """
    if len(call.leaves) > 3 and call.leaves[3] is not None:  # a bias
        return generic(call)
    a, b = (leaf.detach() for leaf in call.leaves[:2])
    run = call.without(0).without(1).run

    def alike(t: Tensor, recorded: Tensor) -> Tensor:
        return t if t.stride() == recorded.stride() else torch.empty_like(recorded).copy_(t)

    def single(ta: Tensor | None, tb: Tensor | None, *_: Tensor | None) -> Outputs:
        pairs = [(ta, b), (a, tb)]
        return total([
            None if left is None or right is None else run({0: alike(left, a), 1: alike(right, b)})
            for left, right in pairs
        ])  # fmt: skip

    def block(*tangents: Tensor | None) -> Outputs:
        count = next(len(t) for t in tangents if t is not None)
        made = [single(*(None if t is None else t[k] for t in tangents)) for k in range(count)]
        return torch.stack(made)  # type: ignore[arg-type]

    return make_step(single, block)
