"""The entries of a weight in the order of its matrix ``W: [m, n]``, and as they are stored."""

from __future__ import annotations

from torch import Tensor


def as_matrix(stored: Tensor, outputs: int, *, transposed: bool) -> Tensor:
    """``[…, m·n]``, as the entries are stored, to ``[…, m, n]``.

    >>> import torch
    >>> as_matrix(torch.arange(6), 2, transposed=True)
    tensor([[0, 2, 4],
            [1, 3, 5]])
    """
    if transposed:
        return stored.unflatten(-1, (-1, outputs)).mT
    return stored.unflatten(-1, (outputs, -1))


def as_stored(matrix: Tensor, *, transposed: bool) -> Tensor:
    """The inverse of :func:`as_matrix`: ``[…, m, n]`` to ``[…, m·n]``."""
    return (matrix.mT if transposed else matrix).flatten(-2)
