"""Orthonormal bases of blocks whose rows are spread over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope.vectors.sums import reject

if TYPE_CHECKING:
    from curvescope.vectors.space import Space


def gram_schmidt(space: Space, rows: Tensor) -> tuple[Tensor, Tensor]:
    """See :meth:`Space.orthonormalize`: row by row, twice each.

    LAPACK's QR sums in the rows' own precision; here sums are in float64. A row of zeros stays one,
    with a zero in the factor, so nothing becomes NaN.
    """
    count = rows.shape[0]
    unit = torch.empty_like(rows)
    factor = torch.zeros(count, count, dtype=torch.float64, device=rows.device)
    for i in range(count):
        row, length = rows[i : i + 1], torch.ones(1, 1, dtype=torch.float64, device=rows.device)
        for _ in range(2 if i else 1):
            if i:
                overlap = space.inner(unit[:i], row)
                row = reject(row, overlap, unit[:i])
                factor[:i, i : i + 1] += overlap * length
            norm = space.norms(row)[None]
            row = row / norm.clamp(min=torch.finfo(rows.dtype).tiny).to(row)
            length = length * norm
        unit[i], factor[i, i] = row[0], length[0, 0]
    return unit, factor


def qr(space: Space, rows: Tensor) -> tuple[Tensor, Tensor]:
    """See :meth:`Space.qr`.

    ``X = blockdiag(Q_p) · [R_1; …; R_p]`` with the factors of the ranks, and once more of these.
    """
    here, small = torch.linalg.qr(rows.T)
    if space.alone:
        return here.T, small
    count = rows.shape[0]
    each = [min(count, n) for n in space.counts]
    turn, R = torch.linalg.qr(space.group.concatenate(small, each))
    turn, R = space.same(turn, R)
    before = sum(each[: space.group.rank])
    Q = (here @ turn[before : before + len(small)]).T
    signs = _householder(space, Q)
    return signs[:, None] * Q, signs[:, None] * R


def _householder(space: Space, Q: Tensor) -> Tensor:
    """The signs ``±1`` of the rows of ``Q`` that LAPACK's reflections give to it.

    A reflection turns a column so that the entry on the diagonal changes its sign, unless nothing
    is below it. Which sign that is shows in an LU factorization of the first rows of the ``Q`` at
    hand (Ballard et al. 2014, alg. 5, where it serves to compute the reflections themselves).

    >>> from curvescope.vectors.space import Space
    >>> X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).double()
    >>> Q = torch.linalg.qr(X)[0]
    >>> turned = Q * torch.tensor([1, -1, -1, 1])
    >>> _householder(Space(9, dtype=X.dtype, device="cpu"), turned.T)
    tensor([ 1., -1., -1.,  1.], dtype=torch.float64)
    """
    count, place = len(Q), 0
    first = torch.zeros(count, count, dtype=Q.dtype, device=Q.device)  # of the columns of Qᵀ
    for begin, end in space.parts:
        stop = min(end, count)
        if begin < stop:
            first[begin:stop] = Q[:, place : place + stop - begin].T
        place += end - begin
    rest = space.total(first).double().cpu()
    signs = torch.ones(count, dtype=torch.float64)
    for i in range(count):
        flips = i < space.size - 1
        signs[i] = -1.0 if (rest[i, i] >= 0) == flips else 1.0
        rest[i, i] -= signs[i]
        rest[i + 1 :, i] /= rest[i, i]
        rest[i + 1 :, i + 1 :] -= torch.outer(rest[i + 1 :, i], rest[i, i + 1 :])
    return signs.to(Q)
