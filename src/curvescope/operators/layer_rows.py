"""The rows of one layer from what was recorded of it, for every kind.

A layer with a matrix is recorded by its inputs and errors (:mod:`curvescope.operators.rows`), a
table by the rows that were looked up, which no one-hot vector is written out for; the rows of a
scale and a shift are short and written out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from curvescope.layers import Kind, LayerKind, LookupKind, ScaleKind, as_matrix
from curvescope.operators.rows import LayerRows, Rows, WrittenRows
from curvescope.record.layers import LayerRecord


def rows_of(record: LayerRecord, *, weight: bool, bias: bool) -> Rows:
    """The rows by a layer's weight, its bias or both; a bias is a weight whose input is 1."""
    kind, e, x = record.kind, record.errors, record.inputs
    if isinstance(kind, LookupKind):
        return LookupRows(kind.reaching(e, x), x, kind.matrix_shape[1])
    if isinstance(kind, ScaleKind):
        parts = [(e * x[:, None]).sum(2)] if weight else []
        parts += [e.sum(2)] if bias else []
        return WrittenRows(torch.cat(parts, 2).flatten(0, 1), e.shape[1])
    ones = x.new_ones(*x.shape[:2], 1)
    x = torch.cat([x, ones], 2) if weight and bias else x if weight else ones
    return LayerRows(e, x)


def in_order(kind: Kind, gradients: Sequence[Tensor], *, weight: bool, bias: bool) -> Tensor:
    """Gradients by weight and bias in the order of :func:`rows_of`: bias after each row."""
    if not isinstance(kind, LayerKind):
        return torch.cat([g.flatten() for g in gradients])
    m, transposed = kind.matrix_shape[0], kind.transposed
    columns = [as_matrix(gradients[0].flatten(), m, transposed=transposed)] if weight else []
    columns += [gradients[-1][:, None]] if bias else []
    return torch.cat(columns, 1).flatten()


class LookupRows(Rows):
    """Rows of an embedding: ``errors: [N, K, T, m]`` at the rows ``[N, T]`` of a table ``[n, m]``.

    Two samples meet in the rows of the table that both look up:
    ``⟨row(b,k), row(b',k')⟩ = Σ_i ⟨Σ_{t: i_bt = i} e[b,k,t], Σ_{t': i_b't' = i} e[b',k',t']⟩``.
    """

    def __init__(self, errors: Tensor, indices: Tensor, table: int) -> None:
        self.errors, self.indices, self._table = errors, indices, table
        self.samples, self.per_sample = errors.shape[0], errors.shape[1]

    def part(self, start: int, stop: int) -> LookupRows:
        """See :class:`Rows`."""
        return LookupRows(self.errors[start:stop], self.indices[start:stop], self._table)

    def _sums(self, i: int) -> tuple[Tensor, Tensor]:
        """The samples that look up row ``i``, and their summed errors ``[samples · K, m]``."""
        there = self.indices == i
        which = there.any(1).nonzero()[:, 0]
        errors = self.errors[which].double()
        sums = torch.einsum("bktm,bt->bkm", errors, there[which].to(errors))
        return which, sums.flatten(0, 1)

    def add_products(self, other: Rows, out: Tensor) -> None:
        """See :class:`Rows`; row by row of the table."""
        if not isinstance(other, LookupRows):
            self.written().add_products(other, out)
            return
        view = out.unflatten(0, (self.samples, self.per_sample))
        view = view.unflatten(-1, (other.samples, other.per_sample))
        both = set(self.indices.unique().tolist()) & set(other.indices.unique().tolist())
        for i in sorted(both):
            which, sums = self._sums(i)
            others, other_sums = self._sums(i) if other is self else other._sums(i)
            products = (sums @ other_sums.T).view(
                len(which), self.per_sample, len(others), other.per_sample
            )
            rows = view[which]
            rows[:, :, others] += products
            view[which] = rows

    def squared_norms(self) -> Tensor:
        """See :class:`Rows`."""
        e = self.errors.double()
        same = self.indices[:, :, None] == self.indices[:, None]  # [N, T, T]
        return torch.einsum("bkst,bst->bk", e @ e.mT, same.to(e)).flatten()

    def written(self) -> WrittenRows:
        """See :class:`Rows`: the whole table for each row."""
        N, K, T, m = self.errors.shape
        rows = self.errors.new_zeros(N, K, self._table, m)
        place = self.indices[:, None, :, None].expand(N, K, T, m)
        return WrittenRows(rows.scatter_add_(2, place, self.errors).reshape(N * K, -1), K)

    def tensors(self) -> tuple[Tensor, ...]:
        """See :class:`Rows`."""
        return self.errors, self.indices

    def of(self, tensors: Sequence[Tensor]) -> LookupRows:
        """See :class:`Rows`."""
        return LookupRows(tensors[0], tensors[1], self._table)
