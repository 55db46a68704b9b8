"""Exact spectra of whatever is small enough: the matrix itself, or its Gram (dual) form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._checks import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import require_finite, require_symmetric


@dataclass(frozen=True)
class ExactSpectrum:
    """All eigenvalues: ``values``, ascending in float64, and ``zeros`` more that are exactly zero.

    ``form`` says how they were found: ``"primal"`` from the ``n × n`` matrix, ``"dual"`` from a
    Gram matrix of the same non-zero spectrum, in which case the ``n − len(values)`` others vanish.
    """

    values: Tensor
    zeros: int
    form: str
    products: int

    @property
    def dimension(self) -> int:
        """``n``."""
        return len(self.values) + self.zeros

    def cdf(self, x: Tensor) -> Tensor:
        """The share of eigenvalues up to each of the points ``x: [j]``."""
        x = torch.as_tensor(x, dtype=torch.float64)
        below = torch.searchsorted(self.values, x, right=True) + self.zeros * (x >= 0)
        return below.double() / self.dimension


def exact_spectrum(A: LinearOperator, *, limit: int = 8192) -> ExactSpectrum:
    """Every eigenvalue of a symmetric operator, from ``eigh`` in float64 (SP-10's ground truth).

    An operator may have a method ``gram()`` that returns the symmetric matrix ``K: [r, r]`` of its
    dual form, ``A = B Bᵀ``, ``K = Bᵀ B``, whose non-zero eigenvalues are those of ``A`` (OP-8), or
    None where there is none. The smaller of the two forms is taken, up to ``limit`` rows.

    Cost: ``n`` products and ``n²`` numbers (primal), or what ``gram()`` needs and ``r²`` (dual);
    ``O(min(n, r)³)`` work.

    >>> from curvescope.operators.simple import Dense
    >>> spectrum = exact_spectrum(Dense(torch.tensor([[2.0, 1.0], [1.0, 2.0]])))
    >>> [round(float(x), 6) for x in spectrum.values], spectrum.form, spectrum.products
    ([1.0, 3.0], 'primal', 2)
    """
    where = f"exact_spectrum({A})"
    require_symmetric(where, A)
    n, limit = A.shape[0], _checks.positive_int(where, "limit", limit)
    gram = getattr(A, "gram", None)
    dual = gram() if callable(gram) else None
    if dual is not None and dual.shape[0] < n and dual.shape[0] <= limit:
        values = _eigenvalues(where, dual)
        return ExactSpectrum(values, n - len(values), "dual", 0)
    if n > limit:
        also = "" if dual is None else f", its Gram form {dual.shape[0]} × {dual.shape[0]}"
        gigabytes = 8 * n * n / 2**30
        msg = (
            f"{where}: the matrix has {n} × {n} entries ({gigabytes:.3g} GiB){also}, more than "
            f"limit={limit} rows allow; use spectral_measure or eigenpairs, or raise limit"
        )
        raise CurvescopeError(msg)
    return ExactSpectrum(_eigenvalues(where, A.dense()), 0, "primal", n)


def _eigenvalues(where: str, matrix: Tensor) -> Tensor:
    require_finite(where, matrix)
    matrix = matrix.double()
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    return values.cpu()
