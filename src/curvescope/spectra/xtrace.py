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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.spectra import probes as probing
from curvescope.spectra.control import Status, Watch, require_finite
from curvescope.spectra.estimate import Estimate
from curvescope.spectra.rows import multiply

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control


class Images:
    """``A`` times given rows, some at a time, so that what is done can be saved and taken up."""

    def __init__(self, A: LinearOperator, rows: Tensor, block: int, done: Tensor | None) -> None:
        self._operator, self._rows, self._block = A, rows, block
        self.done = torch.empty_like(rows[:0]) if done is None else done.to(rows)

    def __iter__(self) -> Iterator[int]:
        """Multiply block by block; yields the number of rows multiplied so far."""
        while (begin := self.done.shape[0]) < self._rows.shape[0]:
            image = multiply(self._operator, self._rows[begin : begin + self._block])
            self.done = torch.cat([self.done, image])
            yield self.done.shape[0]


def range_basis(Y: Tensor) -> tuple[Tensor, Tensor]:
    """``Y = Q B`` with orthonormal ``Q: [n, r]`` for the numerical rank ``r``; ``B`` is float64."""
    require_finite("A Ω", Y)
    q, r = torch.linalg.qr(Y)
    u, s, vh = torch.linalg.svd(r.double())
    cutoff = 10 * torch.finfo(Y.dtype).eps * Y.shape[1] * (float(s[0]) if len(s) else 0.0)
    rank = int((s > cutoff).sum())
    return q @ u[:, :rank].to(q), s[:rank, None] * vh[:rank]


def xtrace(
    A: LinearOperator,
    products: int,
    *,
    generator: torch.Generator,
    block: int = 32,
    **control: Unpack[Control],
) -> Estimate[float]:
    """``tr A`` from at most ``products`` products, ``block`` at a time; see the module.

    The ``t_i`` share all but one of their vectors, so that their spread over ``√s`` is too small an
    error, by up to 1.4 in measurements. The jackknife, which is the spread of the estimates that
    leave one vector out altogether, ``√(Σ_j (t^(j) − mean)²)``, is too large in the mean (Efron and
    Stein 1981), by up to 3 where the spectrum decays fast. The standard error is their geometric
    mean: right for a flat spectrum, somewhat large for a decaying one. It takes small matrices, no
    products.

    >>> from curvescope.operators.simple import LowRank
    >>> A = LowRank(torch.eye(50, 2, dtype=torch.float64), torch.tensor([3.0, 4.0]).double())
    >>> round(xtrace(A, 8, generator=torch.Generator().manual_seed(0)).value, 9)  # exact: s > rank
    7.0
    """
    n, s = A.shape[0], products // 2
    began, total, estimate, stderr = generator.get_state(), 2 * s, 0.0, math.inf
    stages: dict[str, Images] = {}

    def state() -> dict[str, Tensor]:
        return {"generator": began, **{name: images.done for name, images in stages.items()}}

    settings = {"method": "xtrace", "probes": products, "block": block, "generator": generator}
    watch = Watch("trace", A, settings, state, **control)
    with watch:
        saved = watch.restore() or {}
        if saved:
            generator.set_state(began := saved["generator"])
        omega = probing.draw(A, s, kind="sphere", generator=generator)
        stages["Y"] = Images(A, omega, block, saved.get("Y"))
        for done in stages["Y"]:
            watch.tick(done, total, done)
        Y = stages["Y"].done.T
        Q = range_basis(Y)[0]
        total = s + Q.shape[1]
        stages["Z"] = Images(A, Q.T, block, saved.get("Z"))
        for done in stages["Z"]:
            watch.tick(s + done, total, s + done)
        small = _Small.of(omega.T, Y, Q, stages["Z"].done.T)
        estimate, stderr = small.estimate(n)
    status = Status.INTERRUPTED if watch.interrupted else Status.DONE
    spent = watch.products + sum(len(images.done) for images in stages.values())
    return Estimate(estimate, stderr, spent, s, status)


@dataclass(frozen=True)
class _Small:
    """Everything in coordinates of ``Q``, in float64: no long vectors are left."""

    H: Tensor  # Qᵀ A Q, [r, r]
    W: Tensor  # Qᵀ Ω, [r, s]
    B: Tensor  # Qᵀ Y, [r, s]
    quadratic: Tensor  # ω_iᵀ A ω_i, [s]
    squares: Tensor  # ‖ω_i‖², [s]

    @classmethod
    def of(cls, omega: Tensor, Y: Tensor, Q: Tensor, Z: Tensor) -> _Small:
        """From the test vectors, ``Y = A Ω``, its basis ``Q`` and ``Z = A Q``."""
        H = (Q.T @ Z).double()
        long = omega.double()
        return cls(
            (H + H.T) / 2,
            (Q.T @ omega).double(),
            (Q.T @ Y).double(),
            (long * Y).sum(0),
            long.square().sum(0),
        )

    def without(self, j: int) -> _Small:
        """The same from all vectors but one."""
        rest = [i for i in range(self.B.shape[1]) if i != j]
        basis = range_basis(self.B[:, rest])[0]
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
