"""Operators whose vectors are spread over ranks, with the matrix that they are."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.ranks import Group
from curvescope.vectors import Space

F64 = torch.float64


class Blocks(LinearOperator):
    """A matrix of which each rank has some rows; the parts are uneven, mixed, and one is empty."""

    def __init__(self, matrix: Tensor, group: Group) -> None:
        n = len(matrix)
        super().__init__((n, n), dtype=matrix.dtype, device="cpu", symmetric=True)
        third = [[(0, 7), (n - 20, n)], [(7, n - 50)], [], [(n - 50, n - 20)]]
        parts = third[: group.size]
        parts[-1] = [*parts[-1], *(part for rest in third[group.size :] for part in rest)]
        space = Space(n, dtype=matrix.dtype, device="cpu", group=group, parts=parts)
        self._space, self._matrix = space, matrix

    def _decided_by(self) -> tuple[object, ...]:
        return "matrix", self._matrix

    def _layout(self) -> Space:
        return self._space

    def _mine(self, whole: Tensor) -> Tensor:
        return whole @ self._space.local(self._matrix)

    def _matmat(self, X: Tensor) -> Tensor:
        return self._space.gather(self._mine(X.T)).T

    def _on_rows(self, rows: Tensor) -> Tensor:
        return self._mine(self._space.gather(rows))


class Shares(LinearOperator):
    """A matrix that is the sum of the ranks' matrices, as that of data on all of them is."""

    def __init__(self, matrix: Tensor, group: Group) -> None:
        n = len(matrix)
        super().__init__((n, n), dtype=matrix.dtype, device="cpu", symmetric=True)
        shares = torch.arange(1, group.size + 1, dtype=F64)
        self._share = matrix * float(shares[group.rank] / shares.sum())
        self._group, self._matrix = group, matrix

    def _decided_by(self) -> tuple[object, ...]:
        return "matrix", self._matrix

    def _layout(self) -> Space:
        return Space(self.shape[1], dtype=self.dtype, device="cpu", group=self._group)

    def _matmat(self, X: Tensor) -> Tensor:
        return self._group.sum(self._share @ X)

    def _on_rows(self, rows: Tensor) -> Tensor:
        space = self.domain
        return space.scatter_sum(space.gather(rows) @ self._share)
