"""What is stored of an embedding, and the products made from it: the table is never multiplied.

The input of an embedding is one-hot, so that ``x Vᵀ`` of the closed form in
:mod:`curvescope.engine.layer_factors` is a lookup and ``Σ_bt W_bt x_btᵀ`` adds rows to a table:

    u_bk = Σ_t ⟨e_bkt, V[i_bt]⟩,    result[i] = Σ_{bt: i_bt = i} Σ_k u_bk e_bkt

Rows of the table that no sample looks up are zero, and are left out of what is worked with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from curvescope.engine.layer_factors import Factors, answer, budget, meet, norms, significant
from curvescope.engine.squeeze import Part


class Lookups(Factors):
    """Errors ``[B, K, T, m]`` and the rows ``[B, T]`` that are looked up in a table ``[n, m]``."""

    def __init__(self, errors: Tensor, indices: Tensor, n: int) -> None:
        self._errors, self._indices, self._n = errors, indices, n
        self.rows = errors.shape[0] * errors.shape[1]

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor]:
        """The rows that are looked up, and for every position which of them."""
        used, place = self._indices.unique(return_inverse=True)
        return used, place

    def squeezed(self) -> Lookups:
        """See :class:`Factors`."""
        keep = significant(norms(self._errors))
        if keep is None:
            return self
        return Lookups(self._errors[keep], self._indices[keep], self._n)

    def push(self, v: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        used, _ = self._table
        return self._look_up(v.view(len(v), self._n, -1)[:, used])

    def pull(self, u: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        return self.scatter(self.gather(u, part), part)

    def product(self, v: Tensor, part: Part, columns: int | None) -> Tensor:
        """See :class:`Factors`."""
        _, _, positions, m = self._errors.shape
        size = columns or max(1, budget(v) // (positions * m * v.element_size()))
        return torch.cat([self.pull(self.push(piece, part), part) for piece in v.split(size)])

    def gather(self, u: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`: the rows that are looked up, ``[c, |used| m]``."""
        samples, k, _, m = self._errors.shape
        c = len(u)
        weights = u.T.reshape(samples, k, c)
        used, _ = self._table
        total = u.new_zeros(len(used), c * m)
        for piece, e, place in self._chunks(c, u):
            w = answer(e, weights[piece])
            # Unlike index_add, the same from one time to the next on every device.
            total += torch.ops.aten.embedding_dense_backward(
                w, place.flatten(), len(used), -1, False
            )
        return total.view(len(used), c, m).transpose(0, 1).flatten(1)

    def scatter(self, inside: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        used, _ = self._table
        whole = inside.new_zeros(len(inside), self._n, self._errors.shape[3])
        whole[:, used] = inside.view(len(inside), len(used), -1)
        return whole.flatten(1)

    def spread(self, inside: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        used, _ = self._table
        return self._look_up(inside.view(len(inside), len(used), -1))

    def _look_up(self, table: Tensor) -> Tensor:
        """``[c, r]`` from ``[c, |used|, m]``."""
        c = len(table)
        flat = table.transpose(0, 1).flatten(1).contiguous()  # [|used|, c m]
        pieces = [
            meet(e, F.embedding(place, flat).flatten(0, 1), c)
            for _, e, place in self._chunks(c, table)
        ]
        return torch.cat(pieces).flatten(0, 1).T

    def _chunks(self, columns: int, like: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """As many samples as keep the intermediate results small."""
        samples, _, positions, m = self._errors.shape
        size = max(1, budget(like) // (positions * m * columns * like.element_size()))
        _, place = self._table
        for start in range(0, samples, size):
            piece = slice(start, start + size)
            yield piece, self._errors[piece], place[piece]

    def tensors(self) -> list[Tensor]:
        """See :class:`Factors`."""
        return [self._errors, self._indices]

    def settings(self) -> tuple[int, ...]:
        """See :class:`Factors`."""
        return (self._n,)
