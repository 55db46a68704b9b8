"""Overlap of top eigenspaces: of a Hessian and its approximation, of independent models.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import HasEigenPairs


def overlap(U: Tensor | HasEigenPairs, V: Tensor | HasEigenPairs) -> Tensor:
    """``‖U_kᵀ V_k‖_F² / k`` for every ``k``, with ``U_k`` the first ``k`` columns (DH def. 4.1).

    1 where the two subspaces agree, about ``k/d`` for independent ones in ``d`` dimensions. One
    matrix product gives the whole curve.

    Args:
        U: orthonormal columns ``[d, K]`` in order of importance, or a result with ``vectors``.
        V: the same, of the same shape.

    Returns:
        ``[K]`` in float64, ``K`` the smaller number of columns.

    Raises:
        CurvescopeError: if the columns have different lengths or are not orthonormal.

    >>> I = torch.eye(3)
    >>> overlap(I, I[:, [0, 2, 1]])
    tensor([1.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    return _curve(*(_columns(X, name) for name, X in (("U", U), ("V", V))))


def _columns(X: Tensor | HasEigenPairs, name: str) -> Tensor:
    vectors = X if isinstance(X, Tensor) else X.vectors
    if vectors.ndim != 2 or not vectors.is_floating_point():
        rule = "needs columns [d, K]"
        raise CurvescopeError(
            f"overlap({name})", rule, given=f"{vectors.dtype} {list(vectors.shape)}"
        )
    gram = (vectors.T @ vectors).double()
    slack = 1e-3 if vectors.dtype == torch.float32 else 1e-6
    error = float(
        (gram - torch.eye(len(gram), dtype=torch.float64, device=gram.device)).abs().max()
    )
    if not error <= slack:
        rule = f"the columns must be orthonormal, their inner products are off by {error:.2g}"
        remedy = "orthonormalize them with torch.linalg.qr"
        raise CurvescopeError(f"overlap({name})", rule, remedy=remedy)
    return vectors


def _curve(U: Tensor, V: Tensor) -> Tensor:
    if U.shape[0] != V.shape[0]:
        rule = "columns must have one length"
        raise CurvescopeError("overlap(U, V)", rule, given=f"{U.shape[0]} and {V.shape[0]}")
    k = min(U.shape[1], V.shape[1])
    squares = (U[:, :k].T @ V[:, :k].to(U)).double().square()
    sums = squares.cumsum(0).cumsum(1).diagonal()
    return sums / torch.arange(1, k + 1, dtype=torch.float64, device=sums.device)


@dataclass(frozen=True)
class PairwiseOverlap:
    """Overlap curves of all pairs of models: ``curves: [pairs, K]``, entry ``k − 1`` for ``k``."""

    curves: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean over pairs, ``[K]``."""
        return self.curves.mean(0)

    @property
    def std(self) -> Tensor:
        """The standard deviation over pairs, ``[K]``; zero for a single pair."""
        return self.curves.std(0, correction=min(1, len(self.curves) - 1))

    @property
    def peak(self) -> int:
        """The dimension ``k`` at which the mean overlap is largest."""
        return int(self.mean.argmax()) + 1


def pairwise_overlap(models: Sequence[Tensor | HasEigenPairs]) -> PairwiseOverlap:
    """:func:`overlap` of every pair among independently trained models (DH fig. 1a, 5, 9–13).

    >>> I = torch.eye(2)
    >>> pairwise_overlap([I, I, I[:, [1, 0]]]).mean
    tensor([0.3333, 1.0000], dtype=torch.float64)
    """
    if len(models) < 2:
        rule = "needs at least two models"
        raise CurvescopeError("pairwise_overlap(models)", rule, given=len(models))
    columns = [_columns(X, f"model {i}") for i, X in enumerate(models)]
    k = min(X.shape[1] for X in columns)
    pairs = combinations([X[:, :k] for X in columns], 2)
    return PairwiseOverlap(torch.stack([_curve(U, V) for U, V in pairs]))


@dataclass(frozen=True)
class EigenComparison:
    """Top eigenpairs of a matrix beside those of its approximation (DH fig. 2, 8, 29)."""

    true: Tensor  # [k] eigenvalues
    approximate: Tensor  # [k]
    overlap: Tensor  # [k]


def compare_eigenpairs(true: HasEigenPairs, approximate: HasEigenPairs) -> EigenComparison:
    """Eigenvalues and eigenspace overlap of a matrix and its approximation.

    For a layer: ``eigenpairs(H.block("fc1.weight"), k)`` against ``factors.operator().top(k)``.

    >>> from curvescope.operators.kronecker import KroneckerOperator
    >>> K = KroneckerOperator(torch.diag(torch.tensor([2.0, 1.0])), torch.eye(1), psd=True)
    >>> compare_eigenpairs(K.top(2), (3 * K).top(2)).approximate
    tensor([6., 3.])
    """
    k = min(len(true.values), len(approximate.values))
    return EigenComparison(true.values[:k], approximate.values[:k], overlap(true, approximate))
