"""Lanczos tridiagonalization: one start vector, a block, or many side by side.

    A Q_m = Q_m T_m + β_m q_{m+1} e_mᵀ,     T_m = tridiag(β, α, β)

(Lanczos 1950; TR alg. 1 "SlowLanczos" with and alg. 2 "FastLanczos" without re-orthogonalization).
The recurrence stays on the device: a breakdown, ``β ≤ 16 · eps · ‖T‖``, zeroes the next vector
there, after which everything is zero, and the host finds out at the end (on the CPU: at once).

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import Status, require_symmetric
from curvescope.spectra.krylov import Krylov
from curvescope.spectra.recurrence import Recurrence, Recurrent
from curvescope.spectra.resumable import End, Estimator, run, state_of
from curvescope.vectors import Space, spread, whole_columns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control


@dataclass(frozen=True)
class Tridiagonal:
    """``T_m`` and, with re-orthogonalization, the basis ``[n, m + 1]`` that ends in ``q_{m+1}``.

    ``betas[j]`` couples steps ``j`` and ``j + 1``; the last one is the residual ``β_m`` (0 after a
    breakdown, when the last column of the basis is missing). ``local`` is what this rank holds of
    the basis, as in :class:`EigenPairs`.
    """

    alphas: Tensor  # [m], float64
    betas: Tensor  # [m], float64
    local: Tensor | None
    products: int
    status: Status
    domain: Space | None = None

    @property
    def basis(self) -> Tensor | None:
        """The whole basis ``[n, m + 1]``, gathered like :attr:`EigenPairs.vectors`."""
        return None if self.local is None else whole_columns(self.local, self.domain)

    def matrix(self) -> Tensor:
        """``T_m`` as a dense float64 matrix."""
        off = self.betas[:-1]
        return torch.diag(self.alphas) + torch.diag(off, 1) + torch.diag(off, -1)

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Ritz values, ascending, and their residuals ``β_m |y_m|``."""
        values, vectors = torch.linalg.eigh(self.matrix())
        return values, self.betas[-1] * vectors[-1].abs()


@dataclass(frozen=True)
class BlockTridiagonal:
    """``A V = V T + F G``: basis ``V``, residual directions ``F`` and their coupling ``G``.

    ``local`` is what this rank holds of ``[V, F]``, as in :class:`EigenPairs`.
    """

    matrix: Tensor  # [m, m], float64
    coupling: Tensor  # [p, m], float64
    local: Tensor  # [n, m + p]
    products: int
    status: Status
    domain: Space | None = None

    @property
    def basis(self) -> Tensor:
        """``V: [n, m]``, gathered like :attr:`EigenPairs.vectors`."""
        return whole_columns(self.local[:, : len(self.matrix)], self.domain)

    @property
    def residual(self) -> Tensor:
        """``F: [n, p]``, gathered likewise."""
        return whole_columns(self.local[:, len(self.matrix) :], self.domain)


def lanczos(
    A: LinearOperator,
    steps: int,
    *,
    generator: torch.Generator | None = None,
    reorthogonalize: bool = True,
    start: Tensor | None = None,
    **control: Unpack[Control],
) -> Tridiagonal:
    """``steps`` Lanczos steps from a random Gaussian or a given ``start`` vector ``[n]``.

    With ``reorthogonalize`` every vector is made orthogonal to all before it, twice, and the basis
    is part of the result: memory ``(steps + 1) · n``. Without, three vectors; then converged Ritz
    values come back as ghosts (TR C.5). More steps than the dimension, or than the invariant
    subspace of the start vector, end as a ``Status.BREAKDOWN`` with a shorter, exact ``T``.

    Cost: one product a step (after a breakdown on a GPU also for the rest of the steps). With
    ``checkpoint``, calling again with more ``steps`` continues.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    >>> T = lanczos(A, 10, generator=torch.Generator().manual_seed(0))
    >>> [round(float(x), 9) for x in T.ritz()[0]], T.status
    ([1.0, 2.0, 4.0], <Status.BREAKDOWN: 'breakdown'>)
    """
    where = f"lanczos({A}, {steps})"
    require_symmetric(where, A)
    steps = _checks.positive_int(where, "steps", steps)
    source = _source(where, A, generator, start)
    if isinstance(source, Tensor) and (source.ndim != 1 or float(source.abs().max()) == 0):
        remedy = "for blocks use block_lanczos"
        raise CurvescopeError(where, "`start` must be one vector that is not zero", remedy=remedy)
    return run(Lanczos, A, control, steps, source, reorthogonalize=reorthogonalize)


class Lanczos(Recurrent[Tridiagonal]):
    """One recurrence from a generator or a vector; ``steps`` may be larger on resuming."""

    task = "lanczos"
    free = ("steps",)

    def __init__(
        self,
        A: LinearOperator,
        steps: int,
        start: torch.Generator | Tensor,
        *,
        reorthogonalize: bool,
    ) -> None:
        if isinstance(start, Tensor):
            rows = A.domain.local(start[None])
        else:
            rows = A.domain.random(1, kind="gaussian", generator=start)
        self.recurrence = Recurrence(A, rows, steps, reorthogonalize=reorthogonalize)
        self._steps = steps

    def result(self, end: End) -> Tridiagonal:
        """``T`` up to its breakdown, and the basis with one vector more."""
        alphas, betas = self.recurrence.coefficients(0)
        m, basis = len(alphas), self.recurrence.basis
        broken = end.complete and m < self._steps
        last = m + 1 if m and float(betas[-1]) > 0 else m
        return Tridiagonal(
            alphas,
            betas,
            None if basis is None else basis[0, :last].T,
            end.products,
            Status.BREAKDOWN if broken else end.status,
            spread(self.recurrence.space),
        )


def _source(
    where: str, A: LinearOperator, generator: torch.Generator | None, start: Tensor | None
) -> torch.Generator | Tensor:
    """The start vector or the generator to draw it from, whichever was passed; checked."""
    if start is None:
        return _checks.generator(where, generator)
    return _checks.columns(f"{where}: start", start, A.shape[0], A.dtype, A.device)


def block_lanczos(
    A: LinearOperator,
    steps: int,
    *,
    generator: torch.Generator,
    block: int = 4,
    start: Tensor | None = None,
    **control: Unpack[Control],
) -> BlockTridiagonal:
    """``steps`` block Lanczos steps with full re-orthogonalization: ``block`` columns a product.

    The projected matrix is block tridiagonal. Directions that become dependent are dropped, so that
    blocks may shrink, down to an invariant subspace (``Status.BREAKDOWN``). ``start`` is a block
    ``[n, b]``.

    Cost: at most ``steps · block`` products; memory ``(steps + 1) · block · n``.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64))
    >>> T = block_lanczos(A, 2, block=2, generator=torch.Generator().manual_seed(0))
    >>> [round(float(x), 9) for x in torch.linalg.eigvalsh(T.matrix)]     # two see a pair
    [1.0, 1.0, 3.0, 3.0]
    """
    where = f"block_lanczos({A}, {steps})"
    require_symmetric(where, A)
    steps = _checks.positive_int(where, "steps", steps)
    block = _checks.positive_int(where, "block", block)
    return run(BlockLanczos, A, control, steps, _source(where, A, generator, start), block=block)


class BlockLanczos(Estimator[BlockTridiagonal]):
    """A Krylov decomposition that only grows, from a generator or given columns."""

    task = "block_lanczos"
    state, vectors = state_of("_krylov"), ("basis",)

    def __init__(
        self, A: LinearOperator, steps: int, start: torch.Generator | Tensor, *, block: int
    ) -> None:
        self._krylov, self._block = Krylov(A, (steps + 1) * block), block
        self._total = steps * block
        if isinstance(start, Tensor):
            self._krylov.start(A.domain.local(start.T))
        else:
            self._krylov.inject(block, start)

    @property
    def done(self) -> int:
        """The number of vectors multiplied."""
        return self._krylov.size

    @property
    def total(self) -> int:
        """The number of columns in all steps."""
        return self._total

    @property
    def finished(self) -> bool:
        """Whether all were multiplied, or the subspace is invariant."""
        return self.done >= self.total or not self._krylov.pending

    def step(self) -> None:
        """One block of products."""
        self._krylov.extend(min(self._block, self.total - self.done))

    def result(self, end: End) -> BlockTridiagonal:
        """The current decomposition."""
        krylov = self._krylov
        broken = end.complete and krylov.size < self.total
        return BlockTridiagonal(
            krylov.projected,
            krylov.coupling.clone(),
            krylov.basis[: krylov.used].T,
            end.products,
            Status.BREAKDOWN if broken else end.status,
            spread(krylov.space),
        )
