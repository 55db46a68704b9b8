"""Operators of known spectrum, and one that counts what it is asked."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import Dense

F64 = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rotated(eigenvalues: Tensor, seed: int = 0) -> Dense:
    """A dense matrix with these eigenvalues in a random basis, in their dtype."""
    n = len(eigenvalues)
    gaussian = torch.randn(n, n, dtype=F64, generator=seeded(seed))
    Q = torch.linalg.qr(gaussian)[0]
    matrix = (Q * eigenvalues.double()) @ Q.T
    return Dense(((matrix + matrix.T) / 2).to(eigenvalues.dtype), symmetric=True)


def hessian_like(n: int = 400, dtype: torch.dtype = F64) -> Tensor:
    """Ten outliers, a decaying bulk and a negative tail, in descending order."""
    outliers = torch.tensor([10, 7, 6, 5, 4, 3.2, 2.7, 2.2, 1.8, 1.5], dtype=F64)
    bulk = 0.5 * torch.arange(1, n - 9, dtype=F64) ** -0.8
    bulk[::3] *= -0.7
    return torch.cat([outliers, bulk]).sort(descending=True).values.to(dtype)


class Counting(LinearOperator):
    """The same matrix, with the number of columns it has multiplied."""

    def __init__(self, A: LinearOperator) -> None:
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=True, psd=A.psd)
        self.original, self.columns, self.calls = A, 0, 0

    def _decided_by(self) -> tuple[object, ...] | None:
        return self.original._decided_by()  # a checkpoint of one belongs to the other

    def _matmat(self, X: Tensor) -> Tensor:
        self.columns += X.shape[1]
        self.calls += 1
        return self.original._matmat(X)


class Interrupting(Counting):
    """Raises KeyboardInterrupt, as ctrl-C would, at the given call."""

    _decided_by = Counting._decided_by  # its products are those of the original as well

    def __init__(self, A: LinearOperator, at: int) -> None:
        super().__init__(A)
        self.at = at

    def _matmat(self, X: Tensor) -> Tensor:
        if self.calls == self.at:
            self.calls += 1
            raise KeyboardInterrupt
        return super()._matmat(X)


#: Small, extreme and degenerate matrices: every estimator has to survive them.
EDGE_CASES = {
    "zero": torch.zeros(6, dtype=F64),
    "one_by_one": torch.tensor([-3.0], dtype=F64),
    "one_by_one_zero": torch.tensor([0.0], dtype=F64),
    "rank_one": torch.tensor([5.0] + [0.0] * 19, dtype=F64),
    "minus_rank_one": torch.tensor([-5.0] + [0.0] * 19, dtype=F64),
    "singular": torch.cat([torch.zeros(30, dtype=F64), torch.linspace(1, 2, 10, dtype=F64)]),
    "indefinite": torch.linspace(-3, 2, 25, dtype=F64),
    "identity": torch.ones(15, dtype=F64),
    "repeated": torch.tensor([4.0] * 5 + [2.0] * 5 + [-1.0] * 5, dtype=F64),
    "clustered": torch.tensor([4.0, 4 + 1e-9, 4 - 1e-9, 2.0, 2 + 1e-12] + [0.1] * 15, dtype=F64),
    "tiny": 1e-100 * torch.linspace(1, 2, 12, dtype=F64),
    "huge": 1e100 * torch.linspace(-1, 2, 12, dtype=F64),
}
