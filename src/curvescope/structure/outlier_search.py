"""Outliers by iteration: the edge of the bulk, the eigenpairs above it, and spans of parts."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import LowRank
from curvescope.spectra.eigensolver import eigenpairs

_MARGIN = 1e-6  # an outlier exceeds the edge by this share of it: more than rounding does
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}  # residuals of eigenpairs over the norm
# The relative rounding of an inner product of two means over gradients of this type. Means over
# many float32 gradients are more exact than one float32 number.
_ROUNDING = {torch.float32: 1e-10, torch.float64: 1e-13}


def bulk_edge(left: float, largest: float, dtype: torch.dtype) -> float:
    """The edge of the bulk: ``left``, the largest eigenvalue after the knockout, with a margin.

    At least ``1000 eps · largest``, the rounding that remains where the knockout leaves nothing.

    >>> bulk_edge(0.5, 2.0, torch.float64), bulk_edge(0.0, 2.0, torch.float64) > 0
    (0.5000005, True)
    """
    return max(left * (1 + _MARGIN), 1000 * torch.finfo(dtype).eps * largest)


def leading(A: LinearOperator, k: int, generator: torch.Generator) -> Tensor:
    """The ``k`` largest eigenvalues, to within the margin of the edge.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([3.0, 7.0, 1.0], dtype=torch.float64))
    >>> leading(A, 2, torch.Generator().manual_seed(0)).round(decimals=9)
    tensor([7., 3.], dtype=torch.float64)
    """
    return eigenpairs(A, k, tol=_TOLERANCE[A.dtype], generator=generator).values


def above_edge(
    G: LinearOperator, left: float, C: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, float]:
    """All eigenpairs above the edge and at least one below it, and the edge.

    ``left`` is the largest eigenvalue after the knockout of all ``C²`` means; by interlacing at
    most ``C²`` eigenvalues lie above it.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([9.0, 7.0, 5.0, 2.0, 1.0, 0.5], dtype=torch.float64))
    >>> values, _, edge = above_edge(A, 2.0, 2, torch.Generator().manual_seed(0))
    >>> int((values > edge).sum())
    3
    """
    most = min(C * C, G.shape[0] - 1)
    k = min(2 * C, most)
    pairs = eigenpairs(G, k + 1, tol=_TOLERANCE[G.dtype], generator=generator)
    edge = bulk_edge(left, float(pairs.values[0]), G.dtype)
    while k < most and float(pairs.values[-1]) > edge:
        k = min(2 * k, most)
        pairs = eigenpairs(G, k + 1, tol=_TOLERANCE[G.dtype], generator=generator)
    return pairs.values, pairs.vectors, edge


def span(part: LowRank) -> Tensor:
    """An orthonormal basis ``[P, r]`` of the range of a part, its rank decided in float64.

    Vectors are normalized first: a rare pair of classes spans as much as a frequent one, and
    rounding in float32 must not hide it. Vectors of negligible weight beside the heaviest are
    dropped, and so are combinations within the rounding of the means.

    >>> vectors = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
    >>> Q = span(LowRank(vectors, torch.tensor([1.0, 1.0, 1e-9])))
    >>> (Q @ Q.T).round(decimals=5).diagonal()  # twice the same vector, and one of little weight
    tensor([1., 1., 0.])
    """
    gram = torch.zeros(part.left.shape[1], part.left.shape[1], dtype=torch.float64)
    gram = gram.to(part.left.device)
    for rows in part.left.split(1 << 18):
        double = rows.double()
        gram.addmm_(double.T, double)
    weights = part.scales.double() * gram.diagonal()
    alive = weights > len(weights) * torch.finfo(torch.float64).eps * weights.max()
    if not bool(alive.any()):
        return part.left[:, :0]
    lengths = gram.diagonal()[alive].sqrt()
    values, vectors = torch.linalg.eigh(gram[alive][:, alive] / lengths / lengths[:, None])
    nonzero = values > values[-1] * _ROUNDING[part.dtype]
    mixed = vectors[:, nonzero] / lengths[:, None] / values[nonzero].sqrt()
    basis = part.left[:, alive].double() @ mixed
    return torch.linalg.qr(basis).Q.to(part.dtype)
