"""Sums of products ``U Uᵀ`` in half the work, for the second moments of layers.

A second moment such as ``E[x xᵀ]`` is symmetric: over all batches :func:`add_gram` adds up the
entries on and above the diagonal (strip by strip, with the few others that this brings along), and
at the end :func:`mirror` copies them below it, once. Before that the matrix is not symmetric.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

STRIP = 100
"""Rows of the result that are computed at once."""


def add_gram(total: Tensor, U: Tensor) -> None:
    """``total += U Uᵀ`` for ``U: [n, L]``, as far as :func:`mirror` needs it.

    >>> import torch
    >>> total = torch.zeros(2, 2)
    >>> add_gram(total, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> mirror(total)
    tensor([[ 5., 11.],
            [11., 25.]])
    """
    for start, stop in _strips(U.shape[0]):
        total[start:stop, start:].addmm_(U[start:stop], U[start:].T)


def mirror(total: Tensor) -> Tensor:
    """The symmetric matrix that :func:`add_gram` computed one half of; in place."""
    for start, stop in _strips(total.shape[0]):
        total[stop:, start:stop] = total[start:stop, stop:].T
    return total


def _strips(n: int) -> Iterator[tuple[int, int]]:
    width = -(-n // max(1, round(n / STRIP)))
    for start in range(0, n, width):
        yield start, min(start + width, n)
