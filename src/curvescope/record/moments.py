"""Second moments of what goes into layers and of what comes back to them, over batches.

Where a weight is shared by ``T`` positions of a sample, two conventions make one Kronecker product
of them (Eschenhagen et al. 2023, sec. 3):

- *expand* takes positions as independent, ``E[Σ_t x_t x_tᵀ]`` and ``E[Σ_t e_t e_tᵀ] / T``;
- *reduce* sums them up first, ``E[x̄ x̄ᵀ]`` with the mean ``x̄`` over positions, and
  ``E[(Σ_t e_t)(Σ_t e_t)ᵀ]``.

The weight of a table meets one-hot inputs, whose second moment is diagonal: ``[n]``. That of a
scale meets the constant 1, its errors are ``e_t ⊙ x̂_t``.

References:
    Eschenhagen, Immer, Turner, Schneider, Hennig (2023), *Kronecker-Factored Approximate Curvature
    for Modern Neural Network Architectures*.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from curvescope.layers import Kind, LayerKind, LookupKind, ScaleKind, add_gram, mirror
from curvescope.problem.problem import Problem
from curvescope.record.capture import Capture

SHARING = ("expand", "reduce")


class LayerMoments:
    """Running sums of one layer over batches, in float64; each batch in the model's precision.

    Args:
        record: a forward pass.
        name: the layer.
        sharing: ``"expand"`` or ``"reduce"``; a table is always expanded, because the second moment
            of its mean input would not be diagonal.
        bias: whether the errors of a scale have its shift beside it.
    """

    def __init__(
        self, record: Capture, name: str, sharing: str = "expand", *, bias: bool = False
    ) -> None:
        self._kind: Kind = record.layers[name]
        self.sharing = "expand" if isinstance(self._kind, LookupKind) else sharing
        m, n = self._kind.matrix_shape
        self._both = bias and isinstance(self._kind, ScaleKind)
        errors = (2 * m if self._both else m,) * 2
        inputs = (n,) if isinstance(self._kind, LookupKind) else (n, n)
        shapes = (errors, inputs, (n, 0))
        self._batch = [record.output.new_zeros(shape).detach() for shape in shapes]
        self._total: list[Tensor] | None = None
        self._met: Tensor | None = None  # what the scale of a norm meets in the current samples
        self._batches = 0
        self.samples, self.weight, self._positions = 0, 0.0, 0

    @property
    def positions(self) -> float:
        """``T``, the mean number of positions of a sample; 1 where they are summed up."""
        return 1 if self.sharing == "reduce" else self._positions / max(self.samples, 1)

    def add_inputs(self, x: Tensor, samples: int, weight: float, positions: int) -> None:
        """The inputs of some samples, in the layer's own layout."""
        self._begin()
        self.samples += samples
        self.weight += weight
        kind = self._kind
        if isinstance(kind, LookupKind):
            self._add_lookups(kind, kind.rows(x, samples))
        elif isinstance(kind, ScaleKind):
            self._met = kind.rows(x, samples)
            ones = self._met.new_ones(samples, self._met.shape[1], 1)
            self._add_rows(ones)
        elif self.sharing == "reduce" or not isinstance(kind, LayerKind):
            self._add_rows(kind.rows(x, samples))
        else:
            self._place(positions, samples)
            kind.add_input_moments(x, samples, self._batch[1], self._batch[2][:, :positions])

    def _add_rows(self, rows: Tensor) -> None:
        if self.sharing == "reduce":
            rows = rows.mean(1, keepdim=True)
        positions = self._place(rows.shape[1], len(rows))
        add_gram(self._batch[1], rows.flatten(0, 1).T)
        self._batch[2][:, :positions] += rows.sum(0).T

    def _add_lookups(self, kind: LookupKind, indices: Tensor) -> None:
        positions = self._place(indices.shape[1], len(indices))
        n = len(self._batch[1])
        numbers = torch.arange(positions, device=indices.device)
        places = (indices * positions + numbers).flatten()
        counts = places.bincount(minlength=n * positions).view(n, positions)
        row = kind.frozen_row()
        if row is not None:
            counts[row] = 0
        self._batch[1] += counts.sum(1)
        self._batch[2][:, :positions] += counts

    def _place(self, positions: int, samples: int) -> int:
        """Count these positions, and make room for as many; shorter samples are 0 there."""
        self._positions += positions * samples
        for sums in (self._batch, self._total or []):
            if sums and sums[2].shape[1] < positions:
                longer = sums[2].new_zeros(len(sums[2]), positions)
                longer[:, : sums[2].shape[1]] = sums[2]
                sums[2] = longer
        return positions

    def add_errors(self, e: Tensor, samples: int, *, apart: bool = False) -> None:
        """One pulled-back direction of some samples, in the layer's own layout.

        With ``apart`` the error at each position is that of another direction.
        """
        kind, total = self._kind, self._batch[0]
        summed = self.sharing == "reduce" and not apart
        if isinstance(kind, LayerKind) and not summed:
            kind.add_error_moment(e, samples, total)
            return
        rows = kind.errors(e, samples)
        if isinstance(kind, ScaleKind):
            assert self._met is not None, "inputs come first"
            scaled = rows * self._met
            rows = torch.cat([scaled, rows], 2) if self._both else scaled
        rows = rows.sum(1) if summed else rows.flatten(0, 1)
        add_gram(total, rows.T)

    def end_batch(self) -> None:
        """The batch is complete."""
        self._met = None
        for moment in self._batch[:2]:
            if moment.ndim == 2:
                mirror(moment)
        self._batches += 1

    def _begin(self) -> None:
        """Add what is complete to the running sums; a batch that remains the only one is not."""
        if not self._batches:
            return
        if self._total is None:
            self._total = [sums.to(torch.float64, copy=True) for sums in self._batch]
        else:
            self._place(self._batch[2].shape[1], 0)
            for total, sums in zip(self._total, self._batch, strict=True):
                total += sums
        for sums in self._batch:
            sums.zero_()
        self._batches = 0

    def without_samples(self) -> LayerMoments:
        """Sums of the same shapes that are zero."""
        other = copy(self)
        other._batch = [torch.zeros_like(sums) for sums in self._batch]
        other._total, other._batches = None, 0
        other.samples, other.weight, other._positions = 0, 0.0, 0
        return other

    def share(self, problem: Problem) -> None:
        """Make the sums over this rank's data those over all data."""
        if self._total is None:
            self._total = [sums.to(torch.float64, copy=True) for sums in self._batch]
            self._batches = 0
        else:
            self._begin()
        self._place(max(problem.group.counts(self._total[2].shape[1])), 0)
        self._total = [problem.sum_(total.contiguous()) for total in self._total]
        for sums in self._batch:
            sums.zero_()
        self.samples = int(problem.count(self.samples))
        self.weight = problem.count(self.weight)
        self._positions = int(problem.count(self._positions))

    def means(self) -> tuple[Tensor, Tensor, Tensor]:
        """``E[Σ_t e eᵀ] / T``, ``E[X Xᵀ]`` and ``E[X]``; zeros without samples."""
        if self._total is not None:
            self._begin()
        errors, inputs, mean = self._total or self._batch
        samples, weight = max(self.samples, 1), self.weight or 1.0
        return errors / (weight * max(self.positions, 1)), inputs / samples, mean / samples
