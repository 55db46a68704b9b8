"""Lanczos tridiagonalization: one start vector, a block, or many side by side.

    A Q_m = Q_m T_m + β_m q_{m+1} e_mᵀ,     T_m = tridiag(β, α, β)

(Lanczos 1950; TR alg. 1 "SlowLanczos" with and alg. 2 "FastLanczos" without re-orthogonalization).
The recurrence stays on the device: a breakdown, ``β ≤ 16 · eps · ‖T‖``, zeroes the next vector
there, after which everything is zero, and the host finds out at the end (on the CPU: at once).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._checks import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra import probes as probing
from curvescope.spectra.control import Status, Watch, require_symmetric
from curvescope.spectra.krylov import Krylov
from curvescope.spectra.recurrence import Recurrence

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control


@dataclass(frozen=True)
class Tridiagonal:
    """``T_m`` and, with re-orthogonalization, the basis ``[n, m + 1]`` that ends in ``q_{m+1}``.

    ``betas[j]`` couples steps ``j`` and ``j + 1``; the last one is the residual ``β_m`` (0 after a
    breakdown, when the last column of the basis is missing).
    """

    alphas: Tensor  # [m], float64
    betas: Tensor  # [m], float64
    basis: Tensor | None
    products: int
    status: Status

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
    """``A V = V T + F G``: basis ``V``, residual directions ``F`` and their coupling ``G``."""

    matrix: Tensor  # [m, m], float64
    coupling: Tensor  # [p, m], float64
    basis: Tensor  # [n, m]
    residual: Tensor  # [n, p]
    products: int
    status: Status


def lanczos(
    A: LinearOperator,
    steps: int,
    *,
    generator: torch.Generator | None = None,
    reorthogonalize: bool = True,
    start: Tensor | None = None,
    **control: Unpack[Control],
) -> Tridiagonal:
    """``steps`` Lanczos steps from a random Gaussian or a given ``start`` vector ``[n]`` (SP-1).

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
    if start is None:
        rows = probing.draw(A, 1, kind="gaussian", generator=_checks.generator(where, generator))
    else:
        start = _checks.columns(f"{where}: start", start, A.shape[0], A.dtype, A.device)
        if start.ndim != 1 or float(start.abs().max()) == 0:
            msg = (
                f"{where}: start must be one vector that is not zero; for blocks use block_lanczos"
            )
            raise CurvescopeError(msg)
        rows = start[None]
    run = Recurrence(A, rows, steps, reorthogonalize=reorthogonalize)
    settings = {"reorthogonalize": reorthogonalize, "start vector": rows}
    watch = Watch("lanczos", A, settings, run.state, **control)
    interrupted = run.run(watch)
    alphas, betas = run.coefficients(0)
    m = len(alphas)
    broken = m < steps and not interrupted
    status = Status.INTERRUPTED if interrupted else Status.BREAKDOWN if broken else Status.DONE
    last = m + 1 if m and float(betas[-1]) > 0 else m
    basis = None if run.basis is None else run.basis[0, :last].T
    return Tridiagonal(alphas, betas, basis, run.products + watch.products, status)


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
    krylov = Krylov(A, (steps + 1) * block)
    if start is None:
        krylov.inject(block, _checks.generator(where, generator))
    else:
        krylov.start(_checks.columns(f"{where}: start", start, A.shape[0], A.dtype, A.device).T)
    settings = {"block": block, "steps": steps, "start vectors": krylov.basis[: krylov.used]}
    watch = Watch("block_lanczos", A, settings, krylov.state, **control)
    with watch:
        saved = watch.restore()
        if saved is not None:
            krylov.load(saved)
        while krylov.size < steps * block and krylov.pending:
            krylov.extend(min(block, steps * block - krylov.size))
            watch.tick(min(krylov.size, steps * block), steps * block, krylov.products)
    status = Status.DONE if krylov.pending or krylov.size >= steps * block else Status.BREAKDOWN
    m, used = krylov.size, krylov.used
    return BlockTridiagonal(
        krylov.projected,
        krylov.coupling.clone(),
        krylov.basis[:m].T,
        krylov.basis[m:used].T,
        krylov.products + watch.products,
        Status.INTERRUPTED if watch.interrupted else status,
    )
