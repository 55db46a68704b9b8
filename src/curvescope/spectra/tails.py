"""The two tails of a spectrum: their densities, their masses, and a power law through them.

Fig. 16 of Papyan, *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra* (TR), shows
the residual ``E = H − G`` with tails ``φ = 1.2·10⁻⁴ |λ|^−2.7``, fitted "on part of the spectrum"
with an R² of 0.99. The paper does not say which part. Here it is the widest one that has that R².
(Its other exponent, −2.2, comes from the log-spectrum; with the factor 1/θ that the paper prints in
C.7 this is the same density, and the two laws contradict each other.)

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure
from curvescope.spectra.rank import without_ghosts

SIDES = ("both", "positive", "negative")


@dataclass(frozen=True)
class TailDensity:
    """The density of positive and of negative eigenvalues in bins of equal width in ``log |λ|``.

    ``points`` are the bins' geometric centers, ascending. A density is that of ``λ``, not of its
    logarithm: a bin's share of all eigenvalues over its width.
    """

    points: Tensor  # [bins]
    positive: Tensor  # [bins]
    negative: Tensor  # [bins], by |λ|

    def of(self, side: str) -> Tensor:
        """The density on a side, or the mean of the two."""
        side = _checks.one_of("TailDensity.of", "side", side, SIDES)
        return (self.positive + self.negative) / 2 if side == "both" else getattr(self, side)


def tail_density(
    spectrum: SpectralMeasure | ExactSpectrum, *, bins: int = 40, decades: float = 4.0
) -> TailDensity:
    """Densities of both tails, over ``decades`` powers of ten below the largest ``|λ|``.

    >>> spectrum = ExactSpectrum(torch.tensor([-10.0, 1.0, 10.0, 10.0]).double(), 0, "primal", 0)
    >>> tails = tail_density(spectrum, bins=2, decades=2)  # 0.1 … 1 … 10
    >>> tails.points.round(decimals=3), (tails.positive * torch.tensor([0.9, 9.0])).float()
    (tensor([0.3160, 3.1620], dtype=torch.float64), tensor([0.2500, 0.5000]))
    """
    where = "tail_density"
    bins = _checks.positive_int(where, "bins", bins)
    if not _checks.finite_float(where, "decades", decades, minimum=0.0) > 0:
        raise CurvescopeError(where, "`decades` must be positive", given=decades)
    top = _largest(spectrum)
    if not top > 0:
        raise CurvescopeError(where, "needs an eigenvalue that is not zero")
    edges = top * torch.logspace(-decades, 0, bins + 1, dtype=torch.float64)
    edges[-1] *= 1 + 1e-12  # the largest belongs to the last bin
    widths = edges.diff()
    positive = spectrum.cdf(edges).diff() / widths
    negative = -spectrum.cdf(-edges).diff() / widths
    points = (edges[1:] * edges[:-1]).sqrt()
    return TailDensity(points, positive.clamp(min=0), negative.clamp(min=0))


def _largest(spectrum: SpectralMeasure | ExactSpectrum) -> float:
    if isinstance(spectrum, ExactSpectrum):
        return float(spectrum.values.abs().max()) if len(spectrum.values) else 0.0
    outliers = float(spectrum.outliers.abs().max()) if len(spectrum.outliers) else 0.0
    return max(outliers, *(abs(end) for end in spectrum.support))


@dataclass(frozen=True)
class PowerLaw:
    """``φ(λ) = factor · |λ|^exponent`` between the two ends of the ``window`` of ``|λ|``.

    ``r2`` is the share of the variance of ``log φ`` that the line explains at its ``points`` bins.
    """

    factor: float
    exponent: float
    r2: float
    window: tuple[float, float]
    points: int


def power_law(
    source: SpectralMeasure | ExactSpectrum | TailDensity,
    *,
    side: str = "both",
    within: tuple[float, float] | None = None,
    r2: float = 0.99,
    fewest: int = 6,
) -> PowerLaw | None:
    """A line through the logarithm of a tail's density against ``log |λ|`` (TR fig. 16).

    Without ``within`` it is fitted on the widest window of neighboring bins on which a falling law
    explains at least ``r2`` of the variance; of two windows of one width, on that with the higher
    R². Bins without eigenvalues end a window.

    Args:
        source: a spectrum, whose tails are taken by :func:`tail_density`, or these tails.
        side: ``"both"`` (the mean density), ``"positive"`` or ``"negative"``.
        within: ends of a window of ``|λ|`` to fit on instead, whatever R² results; empty bins in it
            are left out.
        r2: the R² that the window must have, 0.99 in the paper.
        fewest: bins of the narrowest window: through two points every law fits.

    Returns:
        The law, or None where no window has that R² (or ``within`` has fewer than three bins).

    >>> x = torch.logspace(-4, 0, 41, dtype=torch.float64)
    >>> density = torch.where(x < 0.99e-2, 30.0, 3e-4 * x**-2.5)  # a shoulder, then a law
    >>> law = power_law(TailDensity(x, density, density), r2=0.999999)
    >>> round(law.exponent, 3), [round(end, 3) for end in law.window]
    (-2.5, [0.01, 1.0])
    """
    where = "power_law"
    side = _checks.one_of(where, "side", side, SIDES)
    fewest = _checks.positive_int(where, "fewest", fewest, minimum=3)
    _checks.finite_float(where, "r2", r2)
    if not 0 < r2 <= 1:
        raise CurvescopeError(where, "`r2` must lie above 0 and at most at 1", given=r2)
    tails = source if isinstance(source, TailDensity) else tail_density(source)
    x, density = tails.points.double(), tails.of(side).double()
    if within is not None:
        low, high = within
        if not 0 < low < high:
            raise CurvescopeError(where, "`within` must be two rising positive ends", given=within)
        chosen = (x >= low) & (x <= high) & (density > 0)
        return _fit(x[chosen], density[chosen]) if int(chosen.sum()) >= 3 else None
    best: PowerLaw | None = None
    for start, stop in _stretches(density > 0):
        for i in range(start, stop - fewest + 1):
            for j in range(i + fewest, stop + 1):
                law = _fit(x[i:j], density[i:j])
                if law.exponent < 0 and law.r2 >= r2 and (best is None or _wider(law, best)):
                    best = law
    return best


def _wider(law: PowerLaw, than: PowerLaw) -> bool:
    new, old = (math.log(a.window[1] / a.window[0]) for a in (law, than))
    return new > old + 1e-9 or (new > old - 1e-9 and law.r2 > than.r2)


def _stretches(alive: Tensor) -> list[tuple[int, int]]:
    """First and last position (exclusive) of every run of true entries."""
    ends = torch.cat([alive.new_zeros(1), alive, alive.new_zeros(1)]).int().diff()
    starts, stops = (ends == 1).nonzero()[:, 0], (ends == -1).nonzero()[:, 0]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _fit(x: Tensor, density: Tensor) -> PowerLaw:
    a, b = x.log(), density.log()
    slope = float(((a - a.mean()) * (b - b.mean())).sum() / (a - a.mean()).square().sum())
    start = float(b.mean() - slope * a.mean())
    left, total = (b - start - slope * a).square().sum(), (b - b.mean()).square().sum()
    explained = 1 - float(left / total) if total > 0 else 0.0  # a constant has nothing to explain
    return PowerLaw(math.exp(start), slope, explained, (float(x[0]), float(x[-1])), len(x))


def tail_masses(
    spectrum: SpectralMeasure | ExactSpectrum, *, beyond: float | None = None
) -> tuple[float, float]:
    """The shares of positive and of negative eigenvalues, with ``|λ|`` above ``beyond``.

    By default every eigenvalue counts that is not zero; of a spectral measure, every Ritz value but
    that nearest to zero in each probe. This one stands for the eigenvalues around zero on both
    sides, often for most of the spectrum, and the side on which it lies means nothing.

    >>> spectrum = ExactSpectrum(torch.tensor([-4.0, 1.0, 2.0]).double(), 1, "primal", 0)
    >>> tail_masses(spectrum), tail_masses(spectrum, beyond=1.5)
    ((0.5, 0.25), (0.25, 0.25))
    """
    where = "tail_masses"
    if beyond is not None:
        beyond = _checks.finite_float(where, "beyond", beyond, minimum=0.0)
        above, below = spectrum.cdf(torch.tensor([beyond, -beyond], dtype=torch.float64)).tolist()
        return 1 - above, below
    if isinstance(spectrum, ExactSpectrum):
        n = spectrum.dimension
        return float((spectrum.values > 0).sum()) / n, float((spectrum.values < 0).sum()) / n
    positive = float((spectrum.outliers > 0).sum()) / spectrum.dimension
    negative = float((spectrum.outliers < 0).sum()) / spectrum.dimension
    for nodes, weights in zip(spectrum.nodes, spectrum.weights, strict=True):
        theta, mass = without_ghosts(nodes, weights)
        mass = mass.clone()
        mass[theta.abs().argmin()] = 0.0
        positive += float(mass[theta > 0].sum()) / spectrum.probes
        negative += float(mass[theta < 0].sum()) / spectrum.probes
    return positive, negative
