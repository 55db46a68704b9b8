"""The largest eigenvalues of a matrix that changes slowly: Lanczos from the last eigenvectors.

A thick-restart Lanczos iteration (Wu and Simon 2000) with full orthogonalization. It begins at the
sum of the last eigenvectors. Where the matrix has hardly changed, this start is nearly invariant
and a few products are enough. A little of the next Ritz vectors and of a random direction is added:
the eigenvector of a new large eigenvalue, of which the last ones have no part, grows there from
look to look.

References:
    Wu and Simon (2000), *Thick-Restart Lanczos Method for Large Symmetric Eigenvalue Problems*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope._random import gaussian
from curvescope.operators.base import LinearOperator

FRESH = 0.03  # the length of what is added to a start, of 1 for the eigenvectors
NEXT = 2  # Ritz vectors that are carried over beside those that were asked for
BASIS = 12  # vectors in memory before a restart


@dataclass(frozen=True)
class Pairs:
    """Eigenvalues in descending order, their vectors as rows, and the norms ``‖A v − λ v‖``.

    A residual bounds the distance to some eigenvalue of a symmetric matrix. ``converged`` says
    whether all that were asked for passed the test ``residual ≤ tol · λ_max``.
    """

    values: list[float]
    residuals: list[float]
    vectors: Tensor
    products: int
    converged: bool
    next_vectors: Tensor

    @property
    def start(self) -> Tensor:
        """Rows for the ``start`` of the next search."""
        return torch.cat([self.vectors, FRESH * self.next_vectors])


def largest(
    A: LinearOperator,
    count: int = 1,
    *,
    start: Tensor | None = None,
    above: float | None = None,
    most: int = 8,
    tol: float = 3e-3,
    max_products: int = 40,
    generator: torch.Generator,
) -> Pairs:
    """The ``count`` algebraically largest eigenpairs of a symmetric operator, and those ``above``.

    Args:
        A: The operator, for which many products pay already (``A.for_many()``).
        count: How many pairs are asked for.
        start: The ``start`` of an earlier result, or eigenvectors as rows.
        above: All eigenvalues above this number are asked for as well, up to ``most``.
        most: See ``above``.
        tol: The residual that is allowed, relative to the largest eigenvalue.
        max_products: When to give up; the residuals say how far it came.
        generator: The source of the random direction.

    >>> from curvescope.operators.simple import Diagonal
    >>> A, g = Diagonal(torch.arange(1.0, 101.0)), torch.Generator().manual_seed(0)
    >>> cold = largest(A, generator=g)
    >>> warm = largest(A, start=cold.start, generator=g)
    >>> round(cold.values[0], 1), warm.products < cold.products
    (100.0, True)
    """
    search = _Search(A, _first(A, start, generator), basis=max(BASIS, 2 * max(count, most) + 2))
    limit = min(max_products, A.shape[0])
    while True:
        search.expand()
        values, residuals = search.ritz()
        wanted = min(count, len(values))
        if above is not None:
            wanted = max(wanted, min(most, sum(value > above for value in values)))
        bound = tol * max(abs(values[0]), torch.finfo(A.dtype).tiny)
        converged = len(values) >= count and all(r <= bound for r in residuals[:wanted])
        if above is not None and wanted < min(most, len(values)):
            converged &= values[wanted] + residuals[wanted] <= above  # the next one stays below
        if converged or search.exhausted or search.products >= limit:
            break
    vectors = search.vectors(min(wanted + NEXT, len(values)))
    return Pairs(
        values[:wanted], residuals[:wanted], vectors[:wanted], search.products,
        converged or search.exhausted, vectors[wanted:],
    )  # fmt: skip


def _first(A: LinearOperator, start: Tensor | None, generator: torch.Generator) -> Tensor:
    fresh = gaussian((A.shape[1],), generator, A.dtype, A.device)
    fresh = fresh / fresh.norm()
    if start is None or not len(start):
        return fresh
    warm = start.to(A.device, A.dtype).sum(0)
    length = warm.norm()
    if not bool(torch.isfinite(length)) or not bool(length > 0):
        return fresh
    warm = warm / length + FRESH * fresh
    return warm / warm.norm()


class _Search:
    """A Krylov space ``V`` (rows, orthonormal) and the projection ``Vᵀ A V`` (float64)."""

    def __init__(self, A: LinearOperator, first: Tensor, basis: int) -> None:
        self._A, self._basis = A, basis
        self._V, self._T = first[None], torch.zeros(0, 0, dtype=torch.float64)
        self._beta, self.products, self.exhausted = 0.0, 0, False

    def expand(self) -> None:
        """Multiply the last vector and take its part outside of the space as the next one."""
        if len(self._V) > self._basis:
            self._restart()
        last = self._V[-1]
        image = self._A @ last
        self.products += 1
        coefficients = self._V @ image
        rest = image - coefficients @ self._V
        again = self._V @ rest
        rest -= again @ self._V
        column = (coefficients + again).double().cpu()
        m = len(self._V)
        T = torch.zeros(m, m, dtype=torch.float64)
        T[: m - 1, : m - 1] = self._T
        T[:, -1] = T[-1, :] = column
        self._T, self._beta = T, float(rest.norm())
        scale = float(T.abs().max())
        if self._beta <= 10 * torch.finfo(self._A.dtype).eps * scale or m == self._A.shape[0]:
            self.exhausted = True  # the space is invariant
        else:
            self._V = torch.cat([self._V, (rest / self._beta)[None]])

    def ritz(self) -> tuple[list[float], list[float]]:
        """Ritz values in descending order, with their residuals."""
        values, S = torch.linalg.eigh(self._T)
        residuals = (self._beta * S[-1].abs()).flip(0)
        return values.flip(0).tolist(), residuals.tolist()

    def vectors(self, count: int) -> Tensor:
        """The Ritz vectors of the largest values, as rows."""
        _, S = torch.linalg.eigh(self._T)
        chosen = S.flip(1)[:, :count].T.to(self._V)
        return chosen @ self._V[: len(self._T)]

    def _restart(self) -> None:
        """Keep half of the Ritz vectors and the last direction."""
        keep = self._basis // 2
        values, S = torch.linalg.eigh(self._T)
        chosen = S.flip(1)[:, :keep].T.to(self._V)
        self._V = torch.cat([chosen @ self._V[: len(self._T)], self._V[-1:]])
        self._T = torch.diag(values.flip(0)[:keep])
