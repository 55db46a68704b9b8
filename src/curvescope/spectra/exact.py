"""Exact spectra, from the matrix itself or its Gram (dual) form if either is small enough.

The logarithm of a spectrum needs no other method: it is that of the eigenvalues. They must be
accurate down to the smallest, for which Gram matrices are formed in float64.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import require_finite, require_symmetric
from curvescope.spectra.density import Curve
from curvescope.spectra.measure import SpectralMeasure


@dataclass(frozen=True)
class ExactSpectrum:
    """All eigenvalues: ``values``, ascending in float64, and ``zeros`` more that are exactly zero.

    ``form`` says how they were computed: ``"primal"`` from the ``n × n`` matrix, ``"dual"`` from a
    Gram matrix of the same non-zero spectrum, in which case the ``n − len(values)`` others vanish.
    """

    values: Tensor
    zeros: int
    form: str
    products: int

    @classmethod
    def of_gram(cls, K: Tensor, dimension: int) -> ExactSpectrum:
        """The spectrum of ``A = Rᵀ R`` of the given dimension from ``K = R Rᵀ: [r, r]``.

        ``A`` has at most ``min(r, dimension)`` non-zero eigenvalues, the largest of those of ``K``.
        """
        values = _eigenvalues("ExactSpectrum.of_gram", K)[-dimension:]
        return cls(values, dimension - len(values), "dual", 0)

    @property
    def dimension(self) -> int:
        """``n``."""
        return len(self.values) + self.zeros

    def cdf(self, x: Tensor) -> Tensor:
        """The share of eigenvalues up to each of the points ``x: [j]``."""
        x = torch.as_tensor(x, dtype=torch.float64)
        below = torch.searchsorted(self.values, x, right=True) + self.zeros * (x >= 0)
        return below.double() / self.dimension

    def density(self, points: int = 1024, *, sigma: float | None = None) -> Curve:
        """The eigenvalues as a density: each a Gaussian of width ``sigma`` and mass ``1/n``.

        The default is a hundredth of the support; that of a Lanczos curve, ``curve.sigma``, makes
        the two comparable. Grid values are averages over their cells, as in TR alg. 3's curves.
        """
        return _curve("ExactSpectrum.density", *_masses(self), points, sigma)

    def log_density(
        self, eps: float = 1e-5, points: int = 1024, *, sigma: float | None = None
    ) -> Curve:
        """The density of ``log(|λ| + eps)`` (TR C.7), zeros included."""
        where = "ExactSpectrum.log_density"
        if _checks.finite_float(where, "eps", eps, minimum=0.0) == 0.0:
            rule = "`eps` must be positive, since log 0 has no place on a grid"
            raise CurvescopeError(where, rule, given=repr(eps))
        x, mass = _masses(self)
        return _curve(where, torch.log(x.abs() + eps), mass, points, sigma)


def exact_spectrum(A: LinearOperator, *, limit: int = 16384) -> ExactSpectrum:
    """Every eigenvalue of a symmetric operator, from ``eigh`` in float64.

    The smaller of two forms is taken, up to ``limit`` rows: the matrix itself, or the Gram form
    ``K = R Rᵀ`` that ``A.dual()`` offers for ``A = Rᵀ R``. The Gauss–Newton matrix of a network has
    one with a row for each sample and output (less one for cross-entropy), whatever the number of
    parameters, and so has each of its layers: ``exact_spectrum(G.block("fc1"))``. ``A.dual().size``
    tells beforehand how large it will be.

    Cost: ``n`` products and ``n²`` numbers (primal), or what ``A.dual().matrix()`` needs and ``r²``
    numbers (dual); ``O(min(n, r)³)`` work.

    Raises:
        CurvescopeError: if both forms are larger than ``limit``, with the alternatives.

    >>> from curvescope.operators.simple import Dense
    >>> spectrum = exact_spectrum(Dense(torch.tensor([[2.0, 1.0], [1.0, 2.0]])))
    >>> [round(float(x), 6) for x in spectrum.values], spectrum.form, spectrum.products
    ([1.0, 3.0], 'primal', 2)
    """
    where = f"exact_spectrum({A})"
    require_symmetric(where, A)
    n, limit = A.shape[0], _checks.positive_int(where, "limit", limit)
    dual = A.dual()
    rows = n if dual is None else dual.size
    if dual is not None and rows < n and rows <= limit:
        return ExactSpectrum.of_gram(dual.matrix(), n)
    if n > limit:
        gigabytes = 8 * n * n / 2**30
        also = "" if dual is None else f", its Gram form {rows} × {rows}"
        fewer = "" if dual is None else "take fewer samples, "
        raise CurvescopeError(
            where,
            f"the matrix has {n} × {n} entries ({gigabytes:.3g} GiB){also}, more than "
            f"`limit={limit}` rows allow",
            remedy=f"{fewer}use spectral_measure or eigenpairs, or raise `limit`",
        )
    return ExactSpectrum(_eigenvalues(where, A.dense()), 0, "primal", n)


def _eigenvalues(where: str, matrix: Tensor) -> Tensor:
    require_finite(where, matrix)
    matrix = matrix.double()
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    return values.cpu()


def log_distance(
    a: ExactSpectrum | SpectralMeasure, b: ExactSpectrum | SpectralMeasure, *, eps: float = 1e-5
) -> float:
    """The Wasserstein-1 distance ``∫ |F_a − F_b|`` between the spectra of ``log(|λ| + eps)``.

    ``F`` is the distribution function of the eigenvalues; ``eps`` is TR's (fig. 6). The distance is
    the mean shift, in natural logarithms, that carries one spectrum into the other: how far a
    Lanczos spectrum is from the exact one, or an approximation's from that of its matrix.

    >>> from curvescope.operators.simple import Diagonal
    >>> a, b = (exact_spectrum(Diagonal(torch.tensor(x))) for x in ([1.0, 1.0], [1.0, 7.389056]))
    >>> round(log_distance(a, b, eps=1e-12), 4)
    1.0
    """
    eps = _checks.finite_float("log_distance", "eps", eps, minimum=0.0)
    if eps == 0.0:
        rule = "`eps` must be positive, since a spectrum may contain 0"
        raise CurvescopeError("log_distance", rule, given=0)
    x, mass = zip(*(_masses(spectrum) for spectrum in (a, b)), strict=True)
    points = torch.cat([torch.log(p.abs() + eps) for p in x])
    points, order = points.sort()
    difference = torch.cat([mass[0], -mass[1]])[order].cumsum(0)
    return float((difference[:-1].abs() * points.diff()).sum())


def _masses(spectrum: ExactSpectrum | SpectralMeasure) -> tuple[Tensor, Tensor]:
    """Points and their masses, which sum to 1."""
    n = spectrum.dimension
    if isinstance(spectrum, ExactSpectrum):
        points = torch.cat([spectrum.values, spectrum.values.new_zeros(1)])
        masses = torch.full_like(points, 1 / n)
        masses[-1] *= spectrum.zeros
        return points, masses
    points = torch.cat([spectrum.nodes.flatten(), spectrum.outliers])
    masses = torch.cat(
        [spectrum.weights.flatten() / spectrum.probes, torch.full_like(spectrum.outliers, 1 / n)]
    )
    return points, masses


def _curve(where: str, x: Tensor, mass: Tensor, points: int, sigma: float | None) -> Curve:
    """Point masses widened to Gaussians, averaged over the cells of a grid that holds them all."""
    points = _checks.positive_int(where, "points", points, minimum=2)
    x, mass = x[mass > 0], mass[mass > 0]
    low, high = float(x.min()), float(x.max())
    width = (high - low) or abs(high) or 1.0
    sigma = width / 100 if sigma is None else _checks.finite_float(where, "sigma", sigma, 0.0)
    if sigma == 0.0:
        raise CurvescopeError(where, "`sigma` must be positive", given=0)
    reach = 0.05 * width + 5 * sigma
    grid = torch.linspace(low - reach, high + reach, points, dtype=torch.float64)
    cell = grid[1] - grid[0]
    edges = torch.cat([grid - cell / 2, grid[-1:] + cell / 2])
    values = torch.zeros_like(grid)
    for some, weights in zip(x.split(4096), mass.split(4096), strict=True):
        shares = torch.special.ndtr((edges[:, None] - some) / sigma).diff(dim=0)
        values += shares @ weights / cell
    return Curve(grid, values, torch.zeros_like(grid), torch.empty(0), sigma)
