"""XTrace: the trace by leave-one-out deflation (Epperly, Tropp and Webber 2024, alg. 1, eq. 2.3).

Test vectors ``ω_1 … ω_s``, ``Y = A Ω``. For each ``i``, ``Q_i`` is an orthonormal basis of the
other columns of ``Y``; the trace within its range is taken exactly and the trace outside it is
estimated with ``ω_i``, which is independent of ``Q_i``:

    t_i = tr(Q_iᵀ A Q_i) + (n − s + 1) · uᵀ A u / ‖u‖²,      u = (I − Q_i Q_iᵀ) ω_i

with ``ω_i`` uniform on a sphere, so that ``u / ‖u‖`` is uniform on the sphere outside. The estimate
is the mean of the ``t_i``. All of them come from one ``Q`` with range ``Y``, because
``Q_i Q_iᵀ = Q (I − s_i s_iᵀ) Qᵀ`` where the unit vector ``s_i`` spans what column ``i`` alone adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.spectra.estimate import Estimate
from curvescope.spectra.images import Staged, range_basis
from curvescope.spectra.resumable import End
from curvescope.vectors import Space


class XTrace(Staged[Estimate[float]]):
    """``tr A`` from at most ``products`` products, ``block`` at a time; see the module.

    The ``t_i`` share all but one of their vectors, so that their spread over ``√s`` is too small an
    error, by up to 1.4 in measurements. The jackknife, which is the spread of the estimates that
    leave one vector out altogether, ``√(Σ_j (t^(j) − mean)²)``, is too large in the mean (Efron and
    Stein 1981), by up to 3 where the spectrum decays fast. The standard error is their geometric
    mean: right for a flat spectrum, somewhat large for a decaying one. It takes small matrices, no
    products.

    >>> from curvescope.operators.simple import LowRank
    >>> from curvescope.spectra.resumable import run
    >>> A = LowRank(torch.eye(50, 2, dtype=torch.float64), torch.tensor([3.0, 4.0]).double())
    >>> settings = {"generator": torch.Generator().manual_seed(0), "products": 8, "block": 32}
    >>> round(run(XTrace, A, {}, **settings).value, 9)  # exact: s > rank
    7.0
    """

    task = "trace"
    stages = vectors = ("Y", "Z")

    def __init__(
        self, A: LinearOperator, *, generator: torch.Generator, products: int, block: int
    ) -> None:
        self._omega = A.domain.random(products // 2, kind="sphere", generator=generator)
        super().__init__(A, block)

    def rows(self, stage: str) -> Tensor:
        """``Ω``, then ``Q``."""
        if stage == "Y":
            return self._omega
        self._Q = range_basis(self._space, self.images["Y"])
        return self._Q.T

    @property
    def total(self) -> int:
        """Two products for each test vector, but for a rank deficit."""
        s = len(self._omega)
        return s + (self._Q.shape[1] if "Z" in self.images else s)

    def result(self, end: End) -> Estimate[float]:
        """The mean of the ``t_i``, available after the last product."""
        s, value, stderr = len(self._omega), 0.0, math.inf
        if end.complete:
            Y, Z = self.images["Y"].T, self.images["Z"].T
            small = _Small.of(self._space, self._omega.T, Y, self._Q, Z)
            value, stderr = small.estimate(self._space.size)
        return Estimate(value, stderr, end.products, s, end.status)


@dataclass(frozen=True)
class _Small:
    """The small matrices of XTrace, in coordinates of ``Q`` and float64."""

    H: Tensor  # Qᵀ A Q, [r, r]
    W: Tensor  # Qᵀ Ω, [r, s]
    B: Tensor  # Qᵀ Y, [r, s]
    quadratic: Tensor  # ω_iᵀ A ω_i, [s]
    squares: Tensor  # ‖ω_i‖², [s]

    @classmethod
    def of(cls, space: Space, omega: Tensor, Y: Tensor, Q: Tensor, Z: Tensor) -> _Small:
        """From the test vectors, ``Y = A Ω``, its basis ``Q`` and ``Z = A Q``."""
        H = space.total((Q.T @ Z).double())
        long = omega.double()
        return cls(
            (H + H.T) / 2,
            space.total((Q.T @ omega).double()),
            space.total((Q.T @ Y).double()),
            space.total((long * Y).sum(0)),
            space.total(long.square().sum(0)),
        )

    def without(self, j: int) -> _Small:
        """These matrices without one test vector."""
        rest = [i for i in range(self.B.shape[1]) if i != j]
        alone = Space(len(self.B), dtype=self.B.dtype, device=self.B.device)
        basis = range_basis(alone, self.B[:, rest].T)
        return _Small(
            basis.T @ self.H @ basis,
            basis.T @ self.W[:, rest],
            basis.T @ self.B[:, rest],
            self.quadratic[rest],
            self.squares[rest],
        )

    def estimate(self, n: int) -> tuple[float, float]:
        """The mean of the ``t_i`` and its standard error."""
        terms, s = self.leave_one_out(n), self.B.shape[1]
        means = torch.stack([self.without(j).leave_one_out(n).mean() for j in range(s)])
        jackknife = float((means - means.mean()).square().sum().sqrt())
        return float(terms.mean()), math.sqrt(float(terms.std()) / math.sqrt(s) * jackknife)

    def leave_one_out(self, n: int) -> Tensor:
        """The ``t_i``, ``[s]``."""
        H, W, B = self.H, self.W, self.B
        # s_i solves Bᵀ s = e_i; where e_i is not in the row space, column i adds nothing: s_i = 0.
        pseudo = torch.linalg.pinv(B)
        alone = (
            (pseudo @ B).diagonal() > 1 - 1e-6
            if B.shape[0]
            else B.new_zeros(B.shape[1], dtype=torch.bool)
        )
        S = torch.where(
            alone, pseudo.T / torch.linalg.vector_norm(pseudo.T, dim=0).clamp(min=1e-300), 0.0
        )
        X = W - S * (S * W).sum(0)
        inside = H.diagonal().sum() - (S * (H @ S)).sum(0)
        # uᵀ A u and ‖u‖² for u = ω − Q x, expanded in the small matrices
        outside = self.quadratic - 2 * (X * B).sum(0) + (X * (H @ X)).sum(0)
        length = self.squares - (X * X).sum(0)
        dimension = n - B.shape[0] + alone.double()
        return inside + dimension * outside / length.clamp(min=1e-300)
