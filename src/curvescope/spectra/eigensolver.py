"""Extreme eigenpairs to a stated residual, with as few products as possible.

The search is a Krylov decomposition (:mod:`curvescope.spectra.krylov`) that grows by ``block``
products a step, stops at the first step at which all ``k`` residuals pass, and restarts thickly
when the basis is full. Stopping early and restarting late saves products.

A repeated eigenvalue, or one along which the start vector has a small component, may be overlooked;
a test afterwards bounds the probability of that: see :mod:`curvescope.spectra.search`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import Status, require_symmetric
from curvescope.spectra.criterion import Criterion
from curvescope.spectra.krylov import Krylov
from curvescope.spectra.resumable import End, Estimator, run, state_of
from curvescope.spectra.search import Search
from curvescope.vectors import Space, spread, whole_columns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control

_MEMORY = 4 << 30
"""The most bytes of the default basis, over all ranks: their number changes no result."""


@dataclass(frozen=True)
class EigenPairs:
    """Eigenvalues, best first, with unit eigenvectors as columns and error bounds.

    ``residuals[i] = ‖A v_i − θ_i v_i‖``; some eigenvalue of ``A`` lies within that distance of
    ``θ_i``. ``converged`` says that ``residuals[i] ≤ tolerance[i]`` for all ``i``.
    ``missed`` bounds the probability that a value is worse than the true one of its place by more
    than its tolerance, because a better eigenvalue was overlooked (1: no bound).
    ``products`` counts the columns multiplied.

    ``local`` is what this rank holds of the vectors, the numbers in ``domain.parts`` of each: a
    ``p``-th at ``p`` ranks, everything in one process, where ``domain`` is None.
    """

    values: Tensor  # [k]
    local: Tensor  # [n, k], of a rank [domain.count, k]
    residuals: Tensor  # [k]
    tolerance: Tensor  # [k]
    converged: bool
    missed: float
    products: int
    status: Status
    domain: Space | None = None

    @property
    def identity(self) -> str:
        """A digest of the pairs; of vectors that are spread, that of their values and residuals."""
        here = () if self.domain else (self.local,)
        return digest("eigenpairs", self.values, self.residuals, self.products, *here)

    def whole(self) -> EigenPairs:
        """The same pairs with whole vectors on every rank, which a file can hold."""
        return replace(self, local=self.vectors, domain=None)

    @property
    def vectors(self) -> Tensor:
        """The whole eigenvectors ``[n, k]``.

        In one process they are ``local``. Else they are gathered on every rank, each time that they
        are asked for: all ranks have to ask, are sent and hold ``k n`` numbers.
        """
        return whole_columns(self.local, self.domain)


def eigenpairs(
    A: LinearOperator,
    k: int,
    *,
    generator: torch.Generator,
    which: str = "largest",
    tol: float = 1e-5,
    relative: str = "norm",
    block: int = 1,
    basis: int | None = None,
    overlook: float | None = None,
    max_products: int | None = None,
    **control: Unpack[Control],
) -> EigenPairs:
    """``k`` extreme eigenpairs ``A v = θ v`` of a symmetric operator.

    A pair passes when ``‖A v − θ v‖ ≤ tol · ‖A‖`` (``relative="norm"``; ``‖A‖`` is the largest Ritz
    value in magnitude, a lower bound) or ``≤ tol · max(|θ|, eps^⅔ ‖A‖)`` (``"value"``, the rule of
    ARPACK and ``eigsh``). The residual is that of the Krylov decomposition plus its rounding,
    ``32 · eps · ‖A‖`` (float32: 10), and dropped couplings (below ``tol / 10,000``).

    Small residuals mean that eigenvalues are near, not that they are the best ones. So the search
    continues until the probability of having overlooked a better eigenvalue, or a copy of a
    repeated one, is at most ``overlook``. By default this is 0.001 if about 6 products for either
    (or ``100,000 / n``) suffice, as for isolated values; else the search ends and ``missed`` has
    the bound. A number is enforced within the budget; 1 skips the test.
    ``benchmarks/calibration.py`` compares ``missed`` with observed frequencies.

    Cost: ``products`` of the result, ``O(n · basis)`` numbers of memory (``basis`` vectors, default
    ``max(3k + 64, k + 128)`` or what fits in 4 GiB, at least ``k + 2·block + 8``), spread over the
    ranks where the operator is. ``block``
    columns are multiplied at a time: 1 needs the fewest products, more pay where blocks are cheap.
    The host looks at the projected matrix once a step: stopping in time saves more than it costs.

    Args:
        A: Any symmetric operator.
        k: How many pairs, at most ``n``.
        generator: The source of the start vectors.
        which: ``"largest"``, ``"smallest"`` (algebraic) or ``"magnitude"``.
        tol: The relative residual.
        relative: What ``tol`` is relative to, ``"norm"`` or ``"value"``.
        block: Columns per product.
        basis: The most vectors in memory.
        overlook: The accepted probability of overlooking an eigenvalue, or None.
        max_products: The budget, default ``max(1000, 50 k)``; when it is spent, ``converged`` is
            False and the best pairs so far are returned.
        **control: ``progress``, ``on_interrupt``, ``checkpoint``, ``every``.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([3.0, 7.0, 7.0, -9.0, 1.0], dtype=torch.float64))
    >>> pairs = eigenpairs(A, 3, generator=torch.Generator().manual_seed(0))
    >>> [round(float(x), 6) for x in pairs.values], pairs.converged
    ([7.0, 7.0, 3.0], True)
    """
    where = f"eigenpairs({A}, {k})"
    require_symmetric(where, A)
    k = at_most_dimension(where, A, k)
    _checks.one_of(where, "which", which, ("largest", "smallest", "magnitude"))
    _checks.one_of(where, "relative", relative, ("norm", "value"))
    block = _checks.positive_int(where, "block", block)
    least = k + 2 * block + 8
    if basis is not None:
        basis = _checks.positive_int(where, "basis", basis)
        if basis < min(least, A.shape[0]):
            rule = f"`basis` must be at least k + 2·block + 8 = {least} vectors"
            raise CurvescopeError(where, rule, given=basis)
    return run(
        ExtremePairs, A, control, k,
        generator=_checks.generator(where, generator),
        which=which,
        tol=_checks.finite_float(where, "tol", tol, minimum=0.0),
        relative=relative,
        block=block,
        basis=basis,
        overlook=None if overlook is None else _checks.finite_float(where, "overlook", overlook, 0),
        max_products=max_products and _checks.positive_int(where, "max_products", max_products),
    )  # fmt: skip


class ExtremePairs(Estimator[EigenPairs]):
    """A :class:`Search` with a budget of products, which may be larger on resuming."""

    task = "eigenpairs"
    free = ("max_products",)
    state, vectors = state_of("_search"), ("basis",)

    def __init__(
        self,
        A: LinearOperator,
        k: int,
        *,
        generator: torch.Generator,
        which: str = "largest",
        tol: float = 1e-5,
        relative: str = "norm",
        block: int = 1,
        basis: int | None = None,
        overlook: float | None = None,
        max_products: int | None = None,
    ) -> None:
        cut = tol * (1e-4 if relative == "norm" else 1e-6)
        capacity = _capacity(A, k, block) if basis is None else min(basis, A.shape[0])
        self._budget = max_products or max(1000, 50 * k)
        self._search = Search(
            Krylov(A, capacity, negligible=cut),
            k,
            Criterion(which, tol, relative),
            block=block,
            overlook=overlook,
            generator=generator,
        )

    @property
    def done(self) -> int:
        """The number of converged pairs."""
        return self._search.converged_pairs

    @property
    def total(self) -> int:
        """The number of requested pairs, ``k``."""
        return self._search.k

    @property
    def finished(self) -> bool:
        """Whether the search has ended or the budget is spent."""
        return self._search.finished or self._search.krylov.products >= self._budget

    def step(self) -> None:
        """One block of products, or one product of an examination for overlooked pairs."""
        self._search.step(self._budget - self._search.krylov.products)

    def result(self, end: End) -> EigenPairs:
        """The best Ritz pairs of the current decomposition."""
        search, krylov = self._search, self._search.krylov
        ritz = search.ritz()
        accurate = bool((ritz.residuals <= ritz.tolerance).all()) and len(ritz.values) == search.k
        status = Status.BUDGET if end.complete else Status.INTERRUPTED
        if search.finished:
            status = Status.CONVERGED if accurate else Status.PRECISION
        dtype, device = krylov.basis.dtype, krylov.basis.device
        return EigenPairs(
            values=ritz.values.to(device, dtype),
            local=krylov.ritz_vectors(ritz.vectors),
            residuals=ritz.residuals.to(device, dtype),
            tolerance=ritz.tolerance.to(device, dtype),
            converged=accurate and search.finished,
            missed=search.missed,
            products=end.products,
            status=status,
            domain=spread(krylov.space),
        )


def at_most_dimension(where: str, A: LinearOperator, k: int) -> int:
    """``k`` if ``1 ≤ k ≤ n``; refuses others."""
    k = _checks.positive_int(where, "k", k)
    if k > A.shape[0]:
        raise CurvescopeError(where, f"`k` must be at most the dimension {A.shape[0]}", given=k)
    return k


def _capacity(A: LinearOperator, k: int, block: int) -> int:
    """The rows of the default basis, fewer if they do not fit in memory."""
    bytes_each = A.shape[0] * torch.finfo(A.dtype).bits // 8
    fitting = min(max(3 * k + 64, k + 128), _MEMORY // bytes_each)
    return min(max(k + 2 * block + 8, fitting), A.shape[0])
