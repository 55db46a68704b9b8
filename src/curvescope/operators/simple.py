"""Operators given by numbers: dense, diagonal, identity and low-rank matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator


class Dense(LinearOperator):
    """A matrix that is stored whole.

    >>> A = Dense(torch.tensor([[2.0, 1.0], [1.0, 3.0]]), symmetric=True)
    >>> A @ torch.tensor([1.0, 1.0])
    tensor([3., 4.])
    """

    def __init__(self, matrix: Tensor, *, symmetric: bool | None = None, psd: bool = False) -> None:
        if matrix.ndim != 2 or not matrix.is_floating_point():
            raise CurvescopeError(
                "Dense(matrix)", "needs a real matrix", given=f"{matrix.dtype} {list(matrix.shape)}"
            )
        if symmetric is None:
            symmetric = matrix.shape[0] == matrix.shape[1] and torch.equal(matrix, matrix.T)
        shape = (matrix.shape[0], matrix.shape[1])
        super().__init__(
            shape, dtype=matrix.dtype, device=matrix.device, symmetric=symmetric, psd=psd
        )
        self._matrix = matrix.detach().clone()

    def _decided_by(self) -> tuple[object, ...]:
        return "dense", self._matrix

    def _matmat(self, X: Tensor) -> Tensor:
        return self._matrix @ X

    def _rmatmat(self, Y: Tensor) -> Tensor:
        return self._matrix.T @ Y

    def dense(self) -> Tensor:
        """A copy of the matrix."""
        return self._matrix.clone()


class Diagonal(LinearOperator):
    """``diag(d)``.

    >>> Diagonal(torch.tensor([2.0, 3.0])) @ torch.tensor([1.0, 1.0])
    tensor([2., 3.])
    """

    def __init__(self, entries: Tensor) -> None:
        if entries.ndim != 1 or not entries.is_floating_point():
            rule = "needs a real vector"
            raise CurvescopeError(
                "Diagonal(entries)", rule, given=f"{entries.dtype} {list(entries.shape)}"
            )
        n = entries.shape[0]
        super().__init__(
            (n, n),
            dtype=entries.dtype,
            device=entries.device,
            symmetric=True,
            psd=bool((entries >= 0).all()),
        )
        self.entries = entries.detach().clone()

    def _decided_by(self) -> tuple[object, ...]:
        return "diagonal", self.entries

    def _matmat(self, X: Tensor) -> Tensor:
        return self.entries[:, None] * X


class Identity(LinearOperator):
    """The identity on ``n`` dimensions; ``A + damping`` is short for ``A + damping · I``."""

    def __init__(
        self, n: int, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> None:
        dtype = torch.get_default_dtype() if dtype is None else dtype
        super().__init__((n, n), dtype=dtype, device=device, symmetric=True, psd=True)

    def _decided_by(self) -> tuple[object, ...]:
        return "identity", self.shape, self.dtype

    def _matmat(self, X: Tensor) -> Tensor:
        return X.clone()


class LowRank(LinearOperator):
    """``U diag(s) Wᵀ`` from ``U: [m, r]``, ``s: [r]`` and ``W: [n, r]`` (default ``W = U``).

    The factors can be large and are not copied: do not write to them afterwards.

    >>> LowRank(torch.tensor([[1.0], [1.0]]), torch.tensor([2.0])).dense()
    tensor([[2., 2.],
            [2., 2.]])
    """

    def __init__(
        self, left: Tensor, scales: Tensor | None = None, right: Tensor | None = None
    ) -> None:
        scales = left.new_ones(left.shape[-1]) if scales is None else scales
        other = left if right is None else right
        if left.ndim != 2 or other.ndim != 2 or scales.shape != (left.shape[1],):
            raise CurvescopeError(
                "LowRank(left, scales, right)",
                "needs [m, r], [r] and [n, r]",
                given=f"{list(left.shape)}, {list(scales.shape)} and {list(other.shape)}",
            )
        if other.shape[1] != left.shape[1]:
            ranks = f"{left.shape[1]} and {other.shape[1]}"
            raise CurvescopeError("LowRank", "both factors need the same rank", given=ranks)
        symmetric = right is None
        super().__init__(
            (left.shape[0], other.shape[0]),
            dtype=left.dtype,
            device=left.device,
            symmetric=symmetric,
            psd=symmetric and bool((scales >= 0).all()),
        )
        self.left, self.scales, self.right = left.detach(), scales.detach(), other.detach()

    def _decided_by(self) -> tuple[object, ...]:
        return "low rank", self.left, self.scales, self.right

    def _matmat(self, X: Tensor) -> Tensor:
        return self.left @ (self.scales[:, None] * (self.right.T @ X))

    def _rmatmat(self, Y: Tensor) -> Tensor:
        return self.right @ (self.scales[:, None] * (self.left.T @ Y))
