"""Which eigenvalues a search is for, when a pair has converged, and its Ritz pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Criterion:
    """The end of the spectrum that is searched, and the tolerance of residuals."""

    which: str
    tol: float
    relative: str

    def order(self, values: Tensor) -> Tensor:
        """Indices of ``values``, best first."""
        return torch.argsort(self.goodness(values), descending=True, stable=True)

    def tolerance(self, values: Tensor, norm: float, eps: float) -> Tensor:
        """The largest residual with which each Ritz pair counts as converged."""
        if self.relative == "norm":
            return torch.full_like(values, self.tol * norm)
        return self.tol * values.abs().clamp(min=eps ** (2 / 3) * norm)

    @property
    def sides(self) -> tuple[int, ...]:
        """The ends searched: 1 the upper, −1 the lower; larger ``side · λ`` is better."""
        return {"largest": (1,), "smallest": (-1,), "magnitude": (1, -1)}[self.which]

    def goodness(self, value: Tensor) -> Tensor:
        """``λ``, ``−λ`` or ``|λ|``: larger is better."""
        return value.abs() if len(self.sides) == 2 else self.sides[0] * value


@dataclass(frozen=True)
class Ritz:
    """The best Ritz pairs: ``vectors`` are coefficients in the basis, ``[m, k]``.

    ``residuals`` include the rounding and the cuts of the decomposition. ``failing`` marks those
    above the tolerance that more products would lower, not those dominated by rounding.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    tolerance: Tensor
    failing: Tensor
