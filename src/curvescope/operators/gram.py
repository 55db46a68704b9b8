"""The Gram (dual) form of a Gauss–Newton matrix: ``G = Rᵀ R`` has the spectrum of ``K = R Rᵀ``.

With a root of the output Hessian, ``∂²ℓ/∂z² = Σ_k q_k q_kᵀ``, the rows of ``R`` are
``J_iᵀ q_k / √N``. For cross-entropy ``q_c' = √p_c' (p − e_c')`` gives the ``N·C`` rows
``√w_{icc'} g_{icc'}`` (TR 6.2), of which ``N·(C−1)`` suffice. ``K`` has one row for each sample and
direction, at any number of parameters, and is a sum over layers,

    K = Σ_l K^l,    so that each layer's exact spectrum comes from its own summand.

Linear and convolution layers contribute through their inputs and back-propagated errors
(:mod:`curvescope.operators.rows`), every other parameter through its rows, a backward pass each.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope.errors import MemoryLimitError
from curvescope.operators.base import Dual, LinearOperator
from curvescope.operators.curvature import Curvature
from curvescope.operators.row_blocks import Directions, RowBlocks
from curvescope.operators.rows import Rows
from curvescope.operators.simple import LowRank
from curvescope.problem import ParamSpace, Problem
from curvescope.problem.batches import Batch
from curvescope.problem.losses import Loss
from curvescope.record import memory
from curvescope.record.outputs import ClassOuter, GradientOuter, LossHessian, OutputMatrix
from curvescope.record.roots import root


def dual_of(A: LinearOperator) -> Dual | None:
    """The Gram form of an operator, or None where none is known.

    Known are the Gauss–Newton matrix of a named loss and its part by one class, the empirical
    Fisher matrix, their layers and positive multiples, and low-rank matrices ``U diag(s) Uᵀ`` with
    ``s ≥ 0``.
    """
    if isinstance(A, LowRank) and A.psd:
        return FactorGram(A)
    if not isinstance(A, Curvature) or not A.psd or A.mix.residual or len(A.mix.outputs) != 1:
        return None
    ((matrix, factor),) = A.mix.outputs
    if not isinstance(matrix, LossHessian | GradientOuter | ClassOuter):
        return None
    return GramForm(A.problem, _roots_of(matrix), space=A.space, factor=factor)


def _roots_of(matrix: OutputMatrix) -> Directions:
    def directions(loss: Loss, z: Tensor, target: Any) -> Tensor:
        return root(matrix, loss.at(z, target), z, 0)

    return directions


class FactorGram:
    """``U diag(s) Uᵀ`` through ``√s UᵀU √s``."""

    def __init__(self, A: LowRank) -> None:
        self._factors, self.size = A, A.left.shape[1]

    def matrix(self) -> Tensor:
        """See :class:`curvescope.operators.base.Dual`."""
        half = self._factors.scales.double().sqrt()
        return half[:, None] * row_products(self._factors.left.T) * half


def row_products(rows: Tensor, width: int = 1 << 16) -> Tensor:
    """``rows rowsᵀ`` in float64, ``width`` columns at a time."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for piece in rows.split(width, dim=1):
        double = piece.double()
        total.addmm_(double, double.T)
    return total


@dataclass(frozen=True)
class GramFootprint:
    """What the Gram matrix and its eigenvalues take."""

    size: int
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        """The matrix, its symmetric copy and the work space of ``eigvalsh``, in float64."""
        return 3 * 8 * self.size**2

    @property
    def fits(self) -> bool:
        """Whether that is within the free memory."""
        return self.total_bytes <= self.free_bytes

    def __str__(self) -> str:
        return (
            f"{self.size} × {self.size} entries, {memory.readable(self.total_bytes)} with its "
            f"eigenvalues, {memory.readable(self.free_bytes)} free"
        )


class GramForm:
    """The dual of ``factor · (1/N) Σ_i J_iᵀ (Σ_k q_k q_kᵀ) J_i`` over some parameters.

    Rows are in the order of the data: sample, direction. Nothing is computed before it is asked
    for. ``N`` is the weight of all terms of the loss.

    Cost of :meth:`matrix`: one forward pass and ``K`` backward passes over the data (``K``
    directions a sample), repeated for every pair of blocks if the inputs and errors of all layers
    do not fit into memory at once; then about ``size² Σ_l min(m n, T² m)`` operations in float64.
    Memory: ``size²`` float64 numbers and those inputs and errors. In a group every rank has the
    samples of all, and takes its share of the pairs of blocks.

    Args:
        problem: the model and its data.
        directions: ``(loss, z, target) ↦ [B, K, *z.shape[1:]]``, the roots ``q_k`` of each sample.
        space: the parameters (default: all of the problem's).
        factor: a multiple of the matrix.

    >>> from torch import nn
    >>> from curvescope.record.extended import class_directions
    >>> layer = nn.Linear(2, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = layer.weight.zero_()
    >>> problem = Problem(layer, (torch.eye(2).double(), torch.tensor([0, 1])))
    >>> form = GramForm(problem, class_directions)
    >>> form.size, form.matrix()[0]
    (4, tensor([ 0.1250, -0.1250,  0.0000,  0.0000], dtype=torch.float64))
    """

    def __init__(
        self,
        problem: Problem,
        directions: Directions,
        *,
        space: ParamSpace | None = None,
        factor: float = 1.0,
    ) -> None:
        self.source = RowBlocks(problem, directions, space or problem.params)
        self._factor = factor

    @property
    def size(self) -> int:
        """Rows of the Gram matrix; asking costs one forward pass over the data, once."""
        return self.source.counts[0]

    def footprint(self) -> GramFootprint:
        """How large the matrix will be, before it is made."""
        return GramFootprint(self.size, memory.free(self.source.problem.device))

    def restrict(self, name: str) -> GramForm:
        """The form of one layer's or parameter's block, on the same rows."""
        space = self.source.space
        other = object.__new__(GramForm)
        other.source = self.source.restrict(space.select(space.resolve(name, "GramForm.restrict")))
        other._factor = self._factor
        return other

    def matrix(self) -> Tensor:
        """``K: [size, size]`` in float64 on the problem's device.

        Raises:
            MemoryLimitError: if it does not fit into the free memory.
        """
        footprint = self.footprint()
        if not self.source.problem.group.agree(footprint.fits):
            rule = f"the Gram matrix does not fit ({footprint})"
            remedy = "take fewer samples, or spectral_measure and eigenpairs instead"
            raise MemoryLimitError("GramForm", rule, remedy=remedy)
        n, device = self.size, self.source.problem.device
        K = torch.zeros(n, n, dtype=torch.float64, device=device)
        blocks = self.source.blocks()
        ranks = self.source.problem.group
        starts = [0]
        with ranks.together():
            for i, block in enumerate(blocks):
                left = self.source.rows(block)
                starts.append(starts[-1] + left[0].count)
                place = slice(starts[i], starts[i + 1])
                for j in range(i + 1):
                    if (i + j) % ranks.size == ranks.rank:
                        self._add(left, blocks[j], K[place, starts[j] : starts[j + 1]], i == j)
        K = ranks.sum_(K).tril_().mul_(self._factor / self.source.counts[1])
        return K + K.tril(-1).T

    def _add(self, left: list[Rows], block: list[Batch], K: Tensor, same: bool) -> None:
        """The inner products of the rows of two blocks, or of one with itself."""
        if same:
            for rows in left:
                rows.add_gram(K)
            return
        for rows, others in zip(left, self.source.rows(block), strict=True):
            rows.add_products(others, K)

    def diagonal(self) -> Tensor:
        """``‖row‖²`` of every row: ``[size]`` in float64; their sum is the trace of ``G``."""
        norms = [
            torch.stack([rows.squared_norms() for rows in self.source.rows([piece])]).sum(0)
            for piece in self.source.pieces()
        ]
        return torch.cat(norms) * (self._factor / self.source.counts[1])
