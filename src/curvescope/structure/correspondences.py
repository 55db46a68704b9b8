"""Eigenvectors of a layer as matrices: low rank, and correspondence with the factors.

An eigenvector ``h`` of a layer's Hessian has the shape of its weight. If the Hessian were
``E[M] ⊗ E[x xᵀ]``, every ``Mat(h)`` would be ``u vᵀ`` of one eigenvector of each factor.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import HasEigenPairs


def matricize(vectors: Tensor | HasEigenPairs, outputs: int) -> Tensor:
    """``Mat(h)`` of each column: ``[m·n, k]`` to ``[k, m, n]``, row-major (DH def. 4.2).

    The paper's formula indexes ``(i−1)m + j``; the order that matches ``M ⊗ x xᵀ``, and a weight
    ``[m, n]`` or ``[m, n₁, K₁, K₂]`` as torch flattens it, is ``(i−1)n + j``.

    Args:
        vectors: columns over one layer's *weight* (``H.block("fc1.weight")``); those of a weight
            that is stored as ``[n, m]`` through :meth:`KroneckerFactors.by_outputs`.
        outputs: ``m``, the number of output neurons or channels.

    >>> matricize(torch.arange(6.0)[:, None], 2)[0]
    tensor([[0., 1., 2.],
            [3., 4., 5.]])
    """
    columns = vectors if isinstance(vectors, Tensor) else vectors.vectors
    columns = columns[:, None] if columns.ndim == 1 else columns
    outputs = _checks.positive_int("matricize", "outputs", outputs)
    if columns.ndim != 2 or columns.shape[0] % outputs:
        rule = "the columns must have m·n entries"
        remedy = "take the block of the weight alone, without the bias"
        raise CurvescopeError(
            f"matricize(vectors, outputs={outputs})", rule, given=list(columns.shape), remedy=remedy
        )
    return columns.T.reshape(columns.shape[1], outputs, -1)


@dataclass(frozen=True)
class SingularStructure:
    """Singular values of matricized eigenvectors (DH fig. 1b, 6, 22).

    ``values: [k, r]`` are the largest ``r`` of each, ``ratio: [k]`` is ``‖Mat(h)‖ / ‖Mat(h)‖_F``:
    1 for rank one, ``1/√min(m, n)`` at the least.
    """

    values: Tensor
    ratio: Tensor


def singular_structure(
    vectors: Tensor | HasEigenPairs, outputs: int, *, keep: int = 10
) -> SingularStructure:
    """Singular values of ``Mat(h)`` for each column, and how close it is to rank one.

    >>> h = torch.outer(torch.tensor([0.6, 0.8]), torch.tensor([0.0, 1.0, 0.0])).reshape(-1, 1)
    >>> singular_structure(h, 2).ratio
    tensor([1.])
    """
    keep = _checks.positive_int("singular_structure", "keep", keep)
    matrices = matricize(vectors, outputs)
    values = torch.linalg.svdvals(matrices)
    norms = torch.linalg.vector_norm(values, dim=1).clamp_min(torch.finfo(values.dtype).tiny)
    return SingularStructure(values[:, :keep], values[:, 0] / norms)


@dataclass(frozen=True)
class Correspondence:
    """``matrix[i, j] = Corr(basis_i, h_j)``, between 0 and 1; a column sums to at most 1.

    ``side`` is ``"input"`` (rows are eigenvectors of ``E[x xᵀ]``) or ``"output"`` (of ``E[M]``).
    """

    matrix: Tensor  # [r, k]
    side: str


def correspondence(vectors: Tensor | HasEigenPairs, basis: Tensor, *, side: str) -> Correspondence:
    """``‖Mat(h_j) v_i‖²`` or ``‖Mat(h_j)ᵀ u_i‖²`` for every pair (DH def. 4.3, eq. 9 and 10).

    For unit vectors, entry ``(i, j)`` is the part of ``h_j`` that is a Kronecker product with
    ``v_i`` (or ``u_i``). For the eigenvectors of a Kronecker product every column is a unit vector.

    Args:
        vectors: columns ``[m·n, k]`` over one layer's weight, for example eigenvectors.
        basis: orthonormal columns, ``[n, r]`` for the input or ``[m, r]`` for the output, best
            first (``torch.linalg.eigh`` gives them smallest first: flip them).
        side: ``"input"`` or ``"output"``.

    >>> h = torch.outer(torch.tensor([1.0, 0.0]), torch.tensor([0.6, 0.8])).reshape(-1, 1)
    >>> correspondence(h, torch.eye(2), side="input").matrix
    tensor([[0.3600],
            [0.6400]])
    """
    _checks.one_of("correspondence", "side", side, ("input", "output"))
    columns = vectors if isinstance(vectors, Tensor) else vectors.vectors
    if basis.ndim != 2 or columns.shape[0] % basis.shape[0]:
        raise CurvescopeError(
            f"correspondence(vectors, basis, side={side!r})",
            f"the vectors need m·n entries and the basis columns of the {side} dimension",
            given=f"{list(columns.shape)} and {list(basis.shape)}",
        )
    other = columns.shape[0] // basis.shape[0]
    matrices = matricize(columns, other if side == "input" else basis.shape[0])
    pattern = "kmn,nr->rkm" if side == "input" else "kmn,mr->rkn"
    parts = torch.einsum(pattern, matrices, basis.to(matrices))
    return Correspondence(parts.square().sum(-1), side)
