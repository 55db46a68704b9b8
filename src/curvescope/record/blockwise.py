"""Attention and its derivatives in blocks of queries, without the matrix of all scores.

    P = softmax(c Q Kᵀ + M),  O = P V

A block of queries sees all keys, so that its rows of ``P`` are made, used and dropped; what is held
grows with the length and not with its square. With ``A = G Vᵀ − δ``, ``δ`` the row sums of
``P ⊙ G Vᵀ``, and dots for tangents:

    tangent     Ṡ = c (Q̇ Kᵀ + Q K̇ᵀ),  Ṗ = P ⊙ (Ṡ − rows(P ⊙ Ṡ)),  Ȯ = Ṗ V + P V̇
    adjoint     S̄ = P ⊙ A,  Q̄ = c S̄ K,  K̄ = c S̄ᵀ Q,  V̄ = Pᵀ G
    its tangent X = Ṗ ⊙ A + P ⊙ (Ġ Vᵀ + G V̇ᵀ),  S̄' = X − P rows(X), and the product rule

Tangents come as columns, ``[k, *shape]``. Heads of queries that share keys and values are more rows
of queries to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

ROOM = {"cpu": 1 << 19}  # scores in a block: what a core's cache holds of a few such tensors
ROOM_ELSEWHERE = 1 << 24
ROWS = 64  # with fewer queries in a block, matrix products are slow
CAUSAL_ROWS = 128  # with more, too many scores of the future are computed

Three = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Piece:
    """Some queries of some heads of some samples, and the keys that they may look at."""

    samples: slice
    heads: slice
    rows: slice
    keys: slice

    def queries(self, t: Tensor) -> Tensor:
        """``[…, B, H, g, T, d]`` to ``[…, b, h, g r, d]``."""
        return t[..., self.samples, self.heads, :, self.rows, :].flatten(-3, -2)

    def memory(self, t: Tensor) -> Tensor:
        """``[…, B, H, T, d]`` to ``[…, b, h, s, d]``, a view."""
        return t[..., self.samples, self.heads, self.keys, :]

    def put(self, out: Tensor, part: Tensor) -> None:
        """Write the result for these queries to where :meth:`queries` would find it."""
        place = out[..., self.samples, self.heads, :, self.rows, :]
        place.copy_(part.view(place.shape))


class Attention:
    """The arguments of one call: ``q: […, H g, T, d]``, ``k`` and ``v: […, H, S, d]``.

    Args:
        q: the queries.
        k: the keys.
        v: the values.
        mask: added to the scores, or true where a query may look; None for none.
        causal: whether a query sees only keys up to its own position.
        scale: ``c``.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
    ) -> None:  # fmt: skip
        self._shapes = q.shape, k.shape, v.shape
        self._heads, self._group = k.shape[-3], q.shape[-3] // k.shape[-3]
        self._q, self._k, self._v = self._by_query(q, 0), self._by_key(k, 0), self._by_key(v, 0)
        self._causal, self._scale = causal, scale
        self._mask = mask
        if mask is not None:
            whole = mask.expand(*q.shape[:-1], k.shape[-2])
            self._mask = self._by_query(whole, 0)

    def _by_query(self, t: Tensor, columns: int) -> Tensor:
        t = t.unflatten(-3, (self._heads, self._group))
        return t.reshape(*t.shape[:columns], -1, *t.shape[-4:])

    def _by_key(self, t: Tensor, columns: int) -> Tensor:
        return t.reshape(*t.shape[:columns], -1, *t.shape[-3:])

    def _pieces(self, columns: int = 1) -> Iterator[Piece]:
        samples, heads, group, length, _ = self._q.shape
        keys = self._k.shape[-2]
        room = ROOM.get(self._q.device.type, ROOM_ELSEWHERE) // columns
        rows = min(length, max(ROWS, room // (group * keys)))
        if self._causal and length >= 4 * CAUSAL_ROWS:
            rows = min(rows, CAUSAL_ROWS)
        some = min(heads, max(1, room // (rows * group * keys)))
        several = max(1, room // (rows * group * keys * heads)) if some == heads else 1
        for b in range(0, samples, several):
            for h in range(0, heads, some):
                for r in range(0, length, rows):
                    end = min(length, r + rows)
                    visible = min(keys, end) if self._causal else keys
                    yield Piece(
                        slice(b, b + several), slice(h, h + some), slice(r, end), slice(0, visible)
                    )

    def _attention(self, at: Piece) -> Tensor:
        """``P`` of a piece: ``[b, h, g r, s]``."""
        scores = torch.matmul(at.queries(self._q), at.memory(self._k).mT).mul_(self._scale)
        if self._mask is not None:
            mask = self._mask[at.samples, at.heads, :, at.rows, at.keys]
            by_group = scores.view(mask.shape)
            if mask.dtype is torch.bool:
                by_group.masked_fill_(~mask, -torch.inf)
            else:
                by_group.add_(mask)
            return torch.ops.aten._safe_softmax(scores, -1)
        if self._causal:
            later = torch.arange(at.keys.stop, device=scores.device)
            here = torch.arange(at.rows.start, at.rows.stop, device=scores.device)
            future = later > here[:, None]
            scores.unflatten(-2, (self._group, -1)).masked_fill_(future, -torch.inf)
        return torch.softmax(scores, -1)

    def _like_queries(self, columns: tuple[int, ...] = ()) -> Tensor:
        """Room for ``O``, positions before heads, as models go on with it."""
        *lead, heads, length, _ = self._shapes[0]
        room = self._v.new_empty(*columns, *lead, length, heads, self._shapes[2][-1])
        return room.transpose(-2, -3)

    # Forwards -----------------------------------------------------------------------------------

    def output(self) -> Tensor:
        """``O``."""
        out = self._like_queries()
        split = out.unflatten(-3, (self._heads, self._group))
        split = split[None] if split.ndim == 4 else split.flatten(0, -5)
        for at in self._pieces():
            at.put(split, self._attention(at) @ at.memory(self._v))
        return out

    def tangent(self, tq: Tensor | None, tk: Tensor | None, tv: Tensor | None) -> Tensor:
        """``Ȯ`` for ``k`` columns."""
        k = next(len(t) for t in (tq, tk, tv) if t is not None)
        dq, dk, dv = self._columns(tq, tk, tv)
        out = self._like_queries((k,))
        split = out.unflatten(-3, (self._heads, self._group))
        split = split[:, None] if split.ndim == 5 else split.flatten(1, -5)
        for at in self._pieces(k):
            P, total = self._attention(at), None
            change = self._change(at, P, dq, dk)
            if change is not None:
                total = change @ at.memory(self._v)
            if dv is not None:
                total = _plus(total, P @ at.memory(dv))
            assert total is not None
            at.put(split, total)
        return out

    def _columns(self, tq: Tensor | None, tk: Tensor | None, tv: Tensor | None) -> Three:
        dq = None if tq is None else self._by_query(tq, 1)
        dk, dv = (None if t is None else self._by_key(t, 1) for t in (tk, tv))
        return dq, dk, dv

    def _change(self, at: Piece, P: Tensor, dq: Tensor | None, dk: Tensor | None) -> Tensor | None:
        """``Ṗ`` of a piece."""
        change = None
        if dq is not None:
            change = at.queries(dq) @ at.memory(self._k).mT
        if dk is not None:
            change = _plus(change, at.queries(self._q) @ at.memory(dk).mT)
        return None if change is None else _centered(change.mul_(self._scale).mul_(P), P)

    # Backwards ----------------------------------------------------------------------------------

    def adjoint(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``Q̄, K̄, V̄`` for ``G = g``."""
        G = self._by_query(g, 0)
        gq, gk, gv = (torch.zeros_like(t) for t in (self._q, self._k, self._v))
        for at in self._pieces():
            Q, P, out = at.queries(self._q), self._attention(at), at.queries(G)
            at.memory(gv).add_(P.mT @ out)
            back = _centered((out @ at.memory(self._v).mT).mul_(P), P).mul_(self._scale)
            at.put(gq, back @ at.memory(self._k))
            at.memory(gk).add_(back.mT @ Q)
        return self._shaped(gq, gk, gv)

    def adjoint_tangent(
        self, g: Tensor, tg: Tensor | None, tq: Tensor | None, tk: Tensor | None, tv: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tangents of ``Q̄, K̄, V̄`` for ``k`` columns."""
        k = next(len(t) for t in (tg, tq, tk, tv) if t is not None)
        dq, dk, dv = self._columns(tq, tk, tv)
        G, dG = self._by_query(g, 0), None if tg is None else self._by_query(tg, 1)
        gq, gk, gv = (t.new_zeros(k, *t.shape) for t in (self._q, self._k, self._v))
        for at in self._pieces(k):
            Q, K, V = at.queries(self._q), at.memory(self._k), at.memory(self._v)
            P, out = self._attention(at), at.queries(G)
            A = out @ V.mT
            A.sub_((P * A).sum(-1, keepdim=True))
            moved = None if dG is None else at.queries(dG) @ V.mT
            if dv is not None:
                moved = _plus(moved, out @ at.memory(dv).mT)
            X = None if moved is None else moved.mul_(P)
            change = self._change(at, P, dq, dk)
            if change is not None:
                at.memory(gv).add_(change.mT @ out)
                X = _plus(change.mul_(A), X)
            if dG is not None:
                at.memory(gv).add_(P.mT @ at.queries(dG))
            assert X is not None
            X = _centered(X, P).mul_(self._scale)
            into_q, into_k = X @ K, X.mT @ Q
            back = A.mul_(P).mul_(self._scale)
            if dk is not None:
                into_q.add_(back @ at.memory(dk))
            if dq is not None:
                into_k.add_(back.mT @ at.queries(dq))
            at.put(gq, into_q)
            at.memory(gk).add_(into_k)
        return self._shaped(gq, gk, gv)

    def _shaped(self, gq: Tensor, gk: Tensor, gv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In the shapes of the arguments, perhaps with columns first."""
        columns = gq.shape[: gq.ndim - 5]
        a, b, c = (
            t.reshape(*columns, *shape) for t, shape in zip((gq, gk, gv), self._shapes, strict=True)
        )
        return a, b, c


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Their sum, in the memory of the first where both are there."""
    if a is None or b is None:
        return b if a is None else a
    return a.add_(b)


def _centered(t: Tensor, P: Tensor) -> Tensor:
    """``t − P ⊙ rows(t)``, in place."""
    return t.addcmul_(P.expand_as(t), t.sum(-1, keepdim=True), value=-1)
