"""Subspace iteration (TR alg. 5), with Rayleigh–Ritz values and residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._checks import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra import probes as probing
from curvescope.spectra.control import Status, Watch, require_finite, require_symmetric
from curvescope.spectra.eigensolver import EigenPairs
from curvescope.spectra.rows import inner, lengths, multiply

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control


def subspace_iteration(
    A: LinearOperator,
    k: int,
    *,
    generator: torch.Generator,
    iterations: int = 128,
    tol: float = 1e-5,
    **control: Unpack[Control],
) -> EigenPairs:
    """The ``k`` eigenpairs of largest magnitude by ``Q ← qr(A Q)``, ``iterations`` times (SP-5).

    The paper's ``λ_c = ‖v_c‖`` loses the sign (spec K.8): here the last ``A Q`` gives the
    Rayleigh–Ritz pairs of ``Qᵀ A Q`` with their true residuals, at no further product. The error
    falls by ``|λ_{k+1} / λ_c|`` an iteration, a Krylov method's much faster: :func:`eigenpairs` is
    the better tool, this is the reference. ``tol`` only decides ``converged``, relative to the
    largest value in magnitude.

    Cost: ``k · iterations`` products, ``3 · k · n`` numbers of memory.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([1.0, -8.0, 4.0], dtype=torch.float64))
    >>> pairs = subspace_iteration(A, 2, generator=torch.Generator().manual_seed(0))
    >>> [round(float(x), 6) for x in pairs.values], pairs.products
    ([-8.0, 4.0], 256)
    """
    where = f"subspace_iteration({A}, {k})"
    require_symmetric(where, A)
    k = _checks.positive_int(where, "k", k)
    if k > A.shape[0]:
        msg = f"{where}: k must be at most the dimension {A.shape[0]}, got {k}"
        raise CurvescopeError(msg)
    iterations = _checks.positive_int(where, "iterations", iterations)
    _checks.generator(where, generator)
    settings = {"k": k, "generator": generator.get_state()}
    Q = _orthonormal(probing.draw(A, k, kind="gaussian", generator=generator))
    image, done, products = torch.zeros_like(Q), 0, 0

    def state() -> dict[str, Tensor]:
        return {"Q": Q, "image": image, "counts": torch.tensor([done, products])}

    watch = Watch("subspace_iteration", A, settings, state, **control)
    with watch:
        saved = watch.restore()
        if saved is not None:
            Q, image = saved["Q"].to(Q), saved["image"].to(Q)
            done, products = (int(x) for x in saved["counts"])
        while done < iterations:
            basis = _orthonormal(image) if done else Q
            product = multiply(A, basis)
            Q, image, done, products = basis, product, done + 1, products + k
            watch.tick(done, iterations, products)
    require_finite(where, image)
    return _rayleigh_ritz(Q, image, tol, products + watch.products, watch.interrupted)


def _orthonormal(rows: Tensor) -> Tensor:
    """Orthonormal rows whose span contains that of ``rows``; a rank deficit is filled up."""
    unit: Tensor = torch.linalg.qr(rows.T)[0]
    return unit.T.contiguous()


def _rayleigh_ritz(
    Q: Tensor, image: Tensor, tol: float, products: int, interrupted: bool
) -> EigenPairs:
    projected = inner(Q, image).cpu()
    values, turn = torch.linalg.eigh((projected + projected.T) / 2)
    order = torch.argsort(values.abs(), descending=True, stable=True)
    values, turn = values[order].to(Q), turn[:, order].T.to(Q)
    vectors = turn @ Q
    residuals = lengths(turn @ image - values[:, None] * vectors).to(Q)
    tolerance = torch.full_like(values, tol * float(values.abs().max()))
    converged = bool((residuals <= tolerance).all()) and products > 0 and not interrupted
    status = Status.CONVERGED if converged else Status.BUDGET
    return EigenPairs(
        values=values,
        vectors=vectors.T,
        residuals=residuals,
        tolerance=tolerance,
        converged=converged,
        missed=1.0,
        products=products,
        status=Status.INTERRUPTED if interrupted else status,
    )
