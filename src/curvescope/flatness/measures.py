"""The sharpness measures of one curvature matrix: eigenvalues at the ends, sums over all of them.

Sums are estimated after the largest eigenvalues have been taken out exactly. With ``Q`` orthonormal
and ``P = I − Q Qᵀ``,

    tr A = tr(Qᵀ A Q) + E[ωᵀ P A P ω],        tr A² = ‖A Q‖² + E‖A P ω‖²

for any isotropic ``ω``: unbiased whatever ``Q`` is, and with little variance when ``Q`` holds the
outliers. One block of products gives both.

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.spectra import EigenPairs, ExactSpectrum, eigenpairs, spectral_measure
from curvescope.spectra.control import Status
from curvescope.spectra.estimate import Estimate, Samples

OUTLIERS = 10
"""Eigenpairs that are taken out before the sums are estimated."""
_LANCZOS_PROBES = 2
"""Start vectors of each Lanczos quadrature; two is the least that gives a standard error."""


@dataclass(frozen=True)
class CurvatureMeasures:
    """Measures of a symmetric ``n × n`` matrix with eigenvalues ``λ_i``, each with its error.

    ``stderr`` of a sum is its standard error over the probes; ``bias`` of an eigenvalue is its
    residual, within which an eigenvalue lies. Papers divide some sums by ``n``: sums and
    means are both here.
    """

    dimension: int
    largest: Estimate[float]  # λ_max, the spectral norm of FF and PP
    smallest: Estimate[float]  # λ_min
    trace: Estimate[float]  # Σ λ_i
    square_sum: Estimate[float]  # tr A² = Σ λ_i²
    absolute_sum: Estimate[float]  # Σ |λ_i|

    @property
    def mean_eigenvalue(self) -> Estimate[float]:
        """``tr A / n``: the "μ" of FF and the "Tr H" of PP's tables."""
        return scaled(self.trace, 1 / self.dimension)

    @property
    def mean_square(self) -> Estimate[float]:
        """``tr A² / n``: the "Frobenius norm" of FF and the "Tr H²" of PP's tables."""
        return scaled(self.square_sum, 1 / self.dimension)

    @property
    def frobenius(self) -> Estimate[float]:
        """``‖A‖_F = √(tr A²)``."""
        s = self.square_sum
        norm = math.sqrt(max(s.value, 0.0))
        stderr = s.stderr / (2 * norm) if norm else 0.0
        return Estimate(norm, stderr, s.products, s.probes, s.status)

    @property
    def spectral_norm(self) -> Estimate[float]:
        """``‖A‖₂ = max |λ_i|``."""
        end = max(self.largest, self.smallest, key=lambda e: abs(e.value))
        return scaled(end, -1.0 if end.value < 0 else 1.0)

    @property
    def effective_rank(self) -> Estimate[float]:
        """``(Σ |λ_i|)² / Σ λ_i²``: n for a multiple of the identity, k for k equal eigenvalues.

        0 for the zero matrix. Its error adds the relative errors of both sums.
        """
        a, s = self.absolute_sum, self.square_sum
        if s.value <= 0:
            return Estimate(0.0, 0.0, s.products, s.probes, s.status)
        rank = a.value**2 / s.value
        relative = 2 * a.stderr / a.value + s.stderr / s.value if a.value else 0.0
        return Estimate(rank, rank * relative, a.products + s.products, s.probes, s.status)


def scaled(e: Estimate[float], factor: float) -> Estimate[float]:
    """A multiple of an estimate."""
    size = abs(factor)
    return Estimate(
        e.value * factor, e.stderr * size, e.products, e.probes, e.status, e.bias * size
    )


def exact_measures(spectrum: ExactSpectrum) -> CurvatureMeasures:
    """All measures from all eigenvalues.

    >>> from curvescope.operators.simple import Diagonal
    >>> from curvescope.spectra import exact_spectrum
    >>> A = Diagonal(torch.tensor([3.0, 0.0, -1.0]).double())
    >>> measures = exact_measures(exact_spectrum(A))
    >>> measures.trace.value, measures.square_sum.value, measures.effective_rank.value
    (2.0, 10.0, 1.6)
    """
    values = spectrum.values

    def exactly(value: Tensor) -> Estimate[float]:
        return Estimate(float(value), 0.0, spectrum.products, spectrum.dimension)

    ends = torch.cat([values, torch.zeros(min(spectrum.zeros, 1), dtype=values.dtype)])
    return CurvatureMeasures(
        spectrum.dimension,
        exactly(ends.max()),
        exactly(ends.min()),
        exactly(values.sum()),
        exactly(values.square().sum()),
        exactly(values.abs().sum()),
    )


def estimated_measures(
    A: LinearOperator, *, generator: torch.Generator, probes: int, steps: int, tol: float
) -> CurvatureMeasures:
    """The measures from products with a few blocks of vectors.

    Cost: the products of ``OUTLIERS`` eigenpairs at the upper end and one at the lower end,
    ``probes + OUTLIERS + 1`` for the sums and, unless ``A`` is positive semi-definite,
    ``2 · steps`` for ``Σ |λ|`` (Lanczos quadrature of a function with a kink: accurate to a few per
    cent, not exactly unbiased).

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.cat([torch.linspace(-1, 1, 200), torch.tensor([50.0])]).double())
    >>> g = torch.Generator().manual_seed(0)
    >>> measures = estimated_measures(A, generator=g, probes=8, steps=16, tol=1e-6)
    >>> round(measures.largest.value, 6)
    50.0
    >>> abs(measures.trace.value - 50) <= 4 * measures.trace.stderr + 1e-9
    True
    """
    n = A.shape[0]
    # Copies of a repeated eigenvalue change neither end, and the sums are unbiased without them.
    top = eigenpairs(A, min(OUTLIERS, n), tol=tol, overlook=1.0, generator=generator)
    # Tolerances are relative to the largest eigenvalue, of which the least is a small part.
    finer = tol if A.psd else min(tol, max(tol / 10, 1e-5))
    bottom = eigenpairs(A, 1, which="smallest", tol=finer, overlook=1.0, generator=generator)
    ends = A.domain.qr(torch.cat([top.local, bottom.local], 1).T)[0]
    trace, squares = _sums(A, ends, probes, generator)
    absolute = trace
    if not A.psd:
        measure = spectral_measure(
            A, steps=steps, probes=_LANCZOS_PROBES, deflate=top, generator=generator
        )
        absolute = scaled(measure.expectation(torch.abs), n)
    return CurvatureMeasures(n, _end(top), _end(bottom), trace, squares, absolute)


def _end(pairs: EigenPairs) -> Estimate[float]:
    """An extreme eigenvalue with its residual as bound."""
    return Estimate(
        float(pairs.values[0]), 0.0, pairs.products, 1, pairs.status, float(pairs.residuals[0])
    )


def _sums(
    A: LinearOperator, Q: Tensor, probes: int, generator: torch.Generator
) -> tuple[Estimate[float], Estimate[float]]:
    """``tr A`` and ``tr A²`` from one block of products, see the module; ``Q`` has rows."""
    space = A.domain
    rows = space.random(probes, generator=generator)
    rows = torch.cat([Q, rows - space.total(rows @ Q.T) @ Q])
    images, count = A.for_many().on_rows(rows).double(), len(Q)
    sums = []
    for shares in ((rows.double() * images).sum(1), images.square().sum(1)):
        values = space.total(shares)
        samples = Samples((), A.device)
        samples.add(values[count:])
        rest = samples.estimate(len(rows), Status.DONE)
        exact = float(values[:count].sum())
        sums.append(Estimate(rest.value + exact, rest.stderr, rest.products, probes))
    return sums[0], sums[1]
