"""Extreme eigenpairs to a stated residual, with as few products as possible.

The search is a Krylov decomposition (:mod:`curvescope.spectra.krylov`) that grows by ``block``
products a step, stops at the first step at which all ``k`` residuals pass, and restarts thickly
when the basis is full. Stopping early and restarting late is what saves products.

What may have been overlooked, a repeated eigenvalue or one that the start vector has little of, is
looked for afterwards, with a bound on the probability: see :mod:`curvescope.spectra.search`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._checks import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import Status, Watch, require_symmetric
from curvescope.spectra.krylov import Krylov
from curvescope.spectra.search import Search
from curvescope.spectra.wanted import Wanted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control

_MEMORY = 4 << 30
"""Bytes that the default basis may take."""


@dataclass(frozen=True)
class EigenPairs:
    """Eigenvalues, best first, with their unit eigenvectors as columns and what they are worth.

    ``residuals[i] = ‖A v_i − θ_i v_i‖``; some eigenvalue of ``A`` lies within that distance of
    ``θ_i``. ``tolerance[i]`` is what it was tested against, ``converged`` says whether all passed.
    ``missed`` bounds the probability that a value is worse than the true one of its place by more
    than its tolerance, because a better eigenvalue was overlooked (1: nothing is known of that).
    ``products`` counts the columns multiplied.
    """

    values: Tensor  # [k]
    vectors: Tensor  # [n, k]
    residuals: Tensor  # [k]
    tolerance: Tensor  # [k]
    converged: bool
    missed: float
    products: int
    status: Status


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
    """``k`` extreme eigenpairs ``A v = θ v`` of a symmetric operator (SP-6).

    A pair passes when ``‖A v − θ v‖ ≤ tol · ‖A‖`` (``relative="norm"``; ``‖A‖`` is the largest Ritz
    value in magnitude, a lower bound) or ``≤ tol · max(|θ|, eps^⅔ ‖A‖)`` (``"value"``, the rule of
    ARPACK and ``eigsh``). The residual is that of the Krylov decomposition plus its rounding,
    ``32 · eps · ‖A‖`` (float32: 10), and what was cut from it (couplings below ``tol / 10,000``).

    Passing says that eigenvalues are near, not that they are the best ones. Therefore the search
    goes on until a hidden one or a copy of a repeated one is overlooked with a probability of at
    most ``overlook``: 0.001 by default, if about 6 products for either (or ``100,000 / n``) can
    establish that, which is so for values that stand out, and else as ``missed`` says; a number
    insists on it, 1 skips the look. ``benchmarks/calibration.py`` compares ``missed`` with what
    happens.

    Cost: products as counted, ``O(n · basis)`` numbers of memory (``basis`` vectors, default
    ``max(3k + 64, k + 128)`` or what fits in 4 GiB, at least ``k + 2·block + 8``). ``block``
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
        basis: The most vectors kept.
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
    k = _checks.positive_int(where, "k", k)
    if k > A.shape[0]:
        msg = f"{where}: k must be at most the dimension {A.shape[0]}, got {k}"
        raise CurvescopeError(msg)
    _checks.one_of(where, "which", which, ("largest", "smallest", "magnitude"))
    _checks.one_of(where, "relative", relative, ("norm", "value"))
    block = _checks.positive_int(where, "block", block)
    budget = _checks.positive_int(where, "max_products", max_products or max(1000, 50 * k))
    tol = _checks.finite_float(where, "tol", tol, minimum=0.0)
    cut = tol * (1e-4 if relative == "norm" else 1e-6)
    search = Search(
        Krylov(A, _capacity(where, A, k, block, basis), negligible=cut),
        k,
        Wanted(which, tol, relative),
        block=block,
        overlook=None if overlook is None else _checks.finite_float(where, "overlook", overlook, 0),
        generator=_checks.generator(where, generator),
    )
    settings = {
        "k": k, "which": which, "tol": tol, "relative": relative, "block": block, "basis": basis,
        "overlook": overlook, "generator": generator,
    }  # fmt: skip
    watch = Watch("eigenpairs", A, settings, search.state, **control)
    with watch:
        saved = watch.restore()
        if saved is not None:
            search.load(saved)
        while not search.finished and search.krylov.products < budget:
            search.step(budget - search.krylov.products)
            watch.tick(search.passed, k, search.krylov.products)
    return _result(search, watch)


def _result(search: Search, watch: Watch) -> EigenPairs:
    """The best pairs of the decomposition as it is."""
    krylov = search.krylov
    ritz = search.ritz()
    passed = bool((ritz.residuals <= ritz.tolerance).all()) and len(ritz.values) == search.k
    status = Status.INTERRUPTED if watch.interrupted else Status.BUDGET
    if search.finished:
        status = Status.CONVERGED if passed else Status.PRECISION
    dtype, device = krylov.basis.dtype, krylov.basis.device
    return EigenPairs(
        values=ritz.values.to(device, dtype),
        vectors=krylov.ritz_vectors(ritz.vectors),
        residuals=ritz.residuals.to(device, dtype),
        tolerance=ritz.tolerance.to(device, dtype),
        converged=passed and search.finished,
        missed=search.missed,
        products=krylov.products + watch.products,
        status=status,
    )


def _capacity(where: str, A: LinearOperator, k: int, block: int, basis: int | None) -> int:
    """Rows of the basis: what the user allows, or a default that fits in memory."""
    n = A.shape[0]
    least = k + 2 * block + 8
    if basis is None:
        bytes_each = n * torch.finfo(A.dtype).bits // 8
        basis = max(least, min(max(3 * k + 64, k + 128), _MEMORY // bytes_each))
    elif _checks.positive_int(where, "basis", basis) < min(least, n):
        msg = f"{where}: basis must be at least k + 2·block + 8 = {least} vectors, got {basis}"
        raise CurvescopeError(msg)
    return min(basis, n)
