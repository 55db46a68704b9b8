"""The root of a layer's block: ``R`` with ``Rᵀ R`` the block, from what was recorded of it."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.engine.layer_factors import Factors
from curvescope.engine.matrix import Matrix
from curvescope.engine.squeeze import Part
from curvescope.operators.base import LinearOperator


class LayerRoot(LinearOperator):
    """``R: [r, P]`` with a row for each sample and output direction, so that a block is ``Rᵀ R``.

    ``R Rᵀ`` has the same eigenvalues; where there are fewer rows than parameters its eigenvectors
    ``u`` are shorter, and those of the block are ``Rᵀ u``. A product with ``R`` costs half of one
    with the block.

    In a group every rank holds its own rows, and vectors ``u`` whole: a product with ``R`` gathers
    the rows, one with ``Rᵀ`` is a sum over the ranks.
    """

    def __init__(self, matrix: Matrix, part: Part, pieces: list[Factors], scale: float) -> None:
        self._rows = [piece.rows for piece in pieces]
        self._problem, self._mix, self._part = matrix.problem, matrix.mix, part
        own = sum(self._rows) if self._problem.data.counts else 0
        self._counts = self._problem.group.counts(own)
        self._start = sum(self._counts[: self._problem.group.rank])
        shape = (sum(self._counts), matrix.space.size)
        super().__init__(shape, dtype=self._problem.dtype, device=self._problem.device)
        self._pieces, self._scale = pieces, scale

    def _matmat(self, X: Tensor) -> Tensor:
        self._problem.check_unchanged()
        rows = self._part.enter(X.T.contiguous())
        own = torch.cat([p.push(rows, self._part) for p in self._pieces], 1).mul_(self._scale).T
        return self._problem.concatenate(own, self._counts)

    def _decided_by(self) -> tuple[object, ...]:
        return "root", self._problem.identity_in_order, self._mix, self._part

    def gather(self, Y: Tensor) -> Tensor:
        """``Rᵀ Y`` in fewer numbers where the layer has constant inputs, as rows ``[k, q]``."""
        if not self._single:
            return self._rmatmat(Y).T
        self._problem.check_unchanged()
        return self._pieces[0].gather(Y.T, self._part).mul_(self._scale)

    def scatter(self, gathered: Tensor) -> Tensor:
        """``Rᵀ Y: [P, k]`` from what was gathered, or of a combination of its rows."""
        if not self._single:
            return gathered.T
        return self._part.leave(self._pieces[0].scatter(gathered, self._part)).T

    def spread(self, gathered: Tensor) -> Tensor:
        """``R Rᵀ Y: [r, k]`` from what was gathered."""
        if not self._single:
            return self._matmat(gathered.T)
        return self._pieces[0].spread(gathered, self._part).mul_(self._scale).T

    def _rmatmat(self, Y: Tensor) -> Tensor:
        self._problem.check_unchanged()
        own = Y[self._start : self._start + self._counts[self._problem.group.rank]].T
        if not self._problem.data.counts:
            own = Y.new_zeros(Y.shape[1], sum(self._rows))
        parts = zip(self._pieces, own.split(self._rows, 1), strict=True)
        total = sum(piece.pull(u, self._part) for piece, u in parts)
        assert isinstance(total, Tensor)
        return self._problem.sum_(self._part.leave(total.mul_(self._scale))).T

    @property
    def _single(self) -> bool:
        """Whether all rows are in one piece, so that what it leaves out is constant in all."""
        return len(self._pieces) == 1 and self._problem.group.alone
