"""Subspace iteration (TR alg. 5), with Rayleigh–Ritz values and residuals.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import Status, require_finite, require_symmetric
from curvescope.spectra.eigensolver import EigenPairs, at_most_dimension
from curvescope.spectra.resumable import End, Estimator, run
from curvescope.vectors import Space, spread

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
    """The ``k`` eigenpairs of largest magnitude by ``Q ← qr(A Q)``, ``iterations`` times.

    The paper's ``λ_c = ‖v_c‖`` loses the sign: here the last ``A Q`` gives the
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
    k = at_most_dimension(where, A, k)
    iterations = _checks.positive_int(where, "iterations", iterations)
    _checks.generator(where, generator)
    return run(Subspace, A, control, k, generator=generator, iterations=iterations, tol=tol)


class Subspace(Estimator[EigenPairs]):
    """``Q ← qr(A Q)``; ``iterations`` may be larger on resuming."""

    task = "subspace_iteration"
    free = ("iterations", "tol")
    vectors = ("Q", "A Q")

    def __init__(
        self,
        A: LinearOperator,
        k: int,
        *,
        generator: torch.Generator,
        iterations: int,
        tol: float,
    ) -> None:
        self._operator, self._iterations, self._tol = A, iterations, tol
        Q = _orthonormal(A.domain, A.domain.random(k, kind="gaussian", generator=generator))
        self.state = {"Q": Q, "A Q": torch.zeros_like(Q), "done": torch.tensor(0)}

    @property
    def done(self) -> int:
        """Iterations so far."""
        return int(self.state["done"])

    @property
    def total(self) -> int:
        """Iterations in all."""
        return self._iterations

    def step(self) -> None:
        """One iteration."""
        A, Q = self._operator, self.state["Q"]
        if self.done:
            Q = _orthonormal(A.domain, self.state["A Q"])
        image = A.on_rows(Q).contiguous()  # as it comes back from a file
        self.state = {"Q": Q, "A Q": image, "done": self.state["done"] + 1}

    def result(self, end: End) -> EigenPairs:
        """Rayleigh–Ritz pairs of the last basis."""
        Q, image = self.state["Q"], self.state["A Q"]
        require_finite(f"subspace_iteration({self._operator})", image)
        pairs = _rayleigh_ritz(self._operator.domain, Q, image, self._tol, end.products)
        if end.complete:
            return pairs
        return replace(pairs, converged=False, status=Status.INTERRUPTED)


def _orthonormal(space: Space, rows: Tensor) -> Tensor:
    """Orthonormal rows whose span contains that of ``rows``; a rank deficit is filled up."""
    return space.qr(rows)[0].contiguous()


def _rayleigh_ritz(space: Space, Q: Tensor, image: Tensor, tol: float, products: int) -> EigenPairs:
    projected = space.inner(Q, image).cpu()
    values, turn = space.same(*torch.linalg.eigh((projected + projected.T) / 2))
    order = torch.argsort(values.abs(), descending=True, stable=True)
    values, turn = values[order].to(Q), turn[:, order].T.to(Q)
    vectors = turn @ Q
    residuals = space.norms(turn @ image - values[:, None] * vectors).to(Q)
    tolerance = torch.full_like(values, tol * float(values.abs().max()))
    converged = bool((residuals <= tolerance).all())
    return EigenPairs(
        values=values,
        local=vectors.T,
        residuals=residuals,
        tolerance=tolerance,
        converged=converged,
        missed=1.0,
        products=products,
        status=Status.CONVERGED if converged else Status.BUDGET,
        domain=spread(space),
    )
