"""Sums over the numbers of long rows that lie here, in full precision."""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 1 << 11
"""Terms of an inner product that are summed in the vectors' own precision."""


def inner(X: Tensor, Y: Tensor) -> Tensor:
    """``X Yᵀ`` of long rows, summed in float64 over chunks: ``[a, n], [b, n] -> [a, b]``.

    A float32 sum of ``n`` terms loses up to ``√n · eps``, at a million parameters the fourth digit
    of an inner product of unit vectors, and with it the orthogonality of a basis.

    >>> inner(torch.ones(1, 5), torch.ones(2, 5))
    tensor([[5., 5.]], dtype=torch.float64)
    """
    if X.dtype == torch.float64:
        return X @ Y.T
    whole = X.shape[1] - X.shape[1] % _CHUNK
    total = (X[:, whole:] @ Y[:, whole:].T).double()
    if whole:
        left, right = (t[:, :whole].unflatten(1, (-1, _CHUNK)).transpose(0, 1) for t in (X, Y))
        # One row times a matrix is about twice as fast as the matrix times one column.
        if len(Y) == 1:
            return total + torch.bmm(right, left.mT)[:, 0].sum(0, dtype=torch.float64)[:, None]
        total += torch.bmm(left, right.mT).sum(0, dtype=torch.float64)
    return total


def reject(rows: Tensor, components: Tensor, basis: Tensor) -> Tensor:
    """``rows [b, n]`` less their ``components [m, b]`` along the rows of ``basis [m, n]``.

    >>> reject(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([[0., 4.]])
    """
    return torch.addmm(rows, components.T.to(rows), basis, alpha=-1)


def lengths(rows: Tensor) -> Tensor:
    """The norm of every row in float64, ``[b]``."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def dots(X: Tensor, Y: Tensor) -> Tensor:
    """Inner products row by row, summed in float64 over chunks, ``[b]``.

    >>> dots(torch.ones(2, 5000), torch.ones(2, 5000))
    tensor([5000., 5000.], dtype=torch.float64)
    """
    whole = X.shape[1] - X.shape[1] % _CHUNK
    total = (X[:, whole:] * Y[:, whole:]).sum(1, dtype=torch.float64)
    if whole:
        left, right = (t[:, :whole].unflatten(1, (-1, 1, _CHUNK)).flatten(0, 1) for t in (X, Y))
        chunks = torch.bmm(left, right.transpose(1, 2)).view(len(X), -1)
        total += chunks.sum(1, dtype=torch.float64)
    return total
