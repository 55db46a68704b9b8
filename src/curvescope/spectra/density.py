"""Views of a spectral measure: densities on a grid, of the spectrum and of its logarithm.

TR alg. 3 puts a Gaussian of width ``σ = 2 / ((M − 1) √(8 log κ))`` on every node of a spectrum
scaled to ``[−1, 1]`` with a margin ``τ`` (alg. 4); at half the spacing of ``M`` equally spaced
nodes a bump has fallen by the factor ``κ``. A grid value here is the *average* of the density in
its cell, by the Gaussian's distribution function: the curve integrates to its mass on any grid,
also where ``σ`` is below its spacing, and else is within ``O((h/σ)²)`` of the point value.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.spectra.estimate import Samples, quantile


@dataclass(frozen=True)
class Curve:
    """A density on equally spaced points, with its standard error over the probes at each.

    ``sigma`` is the width of the bumps. ``outliers`` were taken out exactly and are not part of
    ``values``: draw each as a mass ``1/n``. A log-density has all of this for ``log(|λ| + eps)``.
    ``unseen`` is the height of one node, where no probe has one near.
    """

    grid: Tensor  # [points]
    values: Tensor  # [points]
    stderr: Tensor  # [points], infinite for one probe
    outliers: Tensor  # [c]
    sigma: float
    probes: int = 0  # 0: not sampled
    unseen: Tensor | None = None  # [points]

    @property
    def mass(self) -> float:
        """``∫ values``, cell by cell."""
        return float(self.values.sum() * (self.grid[1] - self.grid[0]))

    def band(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper curve between which the curve of infinitely many probes lies.

        At every point on its own, in at least ``level`` of all runs: the error of sampling, as in
        :func:`curvescope.spectra.estimate.quantile`. Where nodes are rare, the spread of few probes
        says little; there the upper curve is at least as high as a node that each of ``n`` probes
        has missed with the probability ``(1 − level) / 2``. The errors from the number of steps and
        the width of the bumps are not random and not part of the band.
        """
        if self.probes == 0:
            return self.values, self.values
        reach = quantile(level, self.probes) * self.stderr
        low, high = (self.values - reach).clamp(min=0.0), self.values + reach
        if self.unseen is not None:
            rare = 1 - ((1 - level) / 2) ** (1 / self.probes)
            low = torch.where(self.values > rare * self.unseen, low, torch.zeros_like(low))
            high = torch.maximum(high, rare * self.unseen)
        return low, high


class Measure(Protocol):
    """The part of :class:`curvescope.spectra.measure.SpectralMeasure` that densities need."""

    @property
    def nodes(self) -> Tensor:
        """``[probes, steps]``."""

    @property
    def weights(self) -> Tensor:
        """``[probes, steps]``."""

    @property
    def residuals(self) -> Tensor:
        """``[probes, steps]``."""

    @property
    def outliers(self) -> Tensor:
        """``[c]``."""

    @property
    def support(self) -> tuple[float, float]:
        """The interval that the grid must contain."""


def of_measure(measure: Measure, points: int, kappa: float, *, margin: float) -> Curve:
    """``φ(t) = (1/n_vec) Σ_l Σ_m ω_m^l g_σ(t − θ_m^l)`` (TR alg. 3) on ``points`` points.

    The grid covers ``measure.support`` widened by ``margin`` of its length on both sides (``τ``),
    or by 5 ``σ`` where that is more. Cost: ``probes · steps · points`` numbers of work, no product.
    """
    return _smooth(
        measure.nodes, measure.weights, measure.outliers, measure.support, points, kappa, margin
    )


def of_log_measure(
    measure: Measure, eps: float, points: int, kappa: float, *, margin: float, jacobian: bool
) -> Curve:
    """The density of ``x = log(|λ| + eps)`` (TR C.7, natural logarithm).

    A mass stays what it is under a change of variable, so bumps keep their weights and the curve
    integrates to 1; ``jacobian=True`` scales each by ``1 / (|θ| + eps)`` as the paper prints it.
    """
    where = "SpectralMeasure.log_density"
    if _checks.finite_float(where, "eps", eps, minimum=0.0) == 0.0:
        rule = "`eps` must be positive, since log 0 has no place on a grid"
        raise CurvescopeError(where, rule, given=repr(eps))
    nodes = torch.log(measure.nodes.abs() + eps)
    weights = measure.weights / (measure.nodes.abs() + eps) if jacobian else measure.weights
    live = nodes[measure.weights > 0]
    support = (float(live.min()), float(live.max())) if len(live) else (0.0, 0.0)
    outliers = torch.log(measure.outliers.abs() + eps)
    return _smooth(nodes, weights, outliers, support, points, kappa, margin)


def share_below(measure: Measure, x: Tensor) -> Tensor:
    """``∫_{λ ≤ x} dφ`` of the quadrature at the points ``x: [j]``.

    At a node, the true distribution function of a probe lies between the sums of the weights up to
    it, without and with its own (Chebyshev–Markov–Stieltjes). A node that is an eigenvalue, with a
    residual below 1e-3 of the support, is a step. Any other stands for a stretch of the bulk: half
    of its mass is spread evenly up to each neighbor, so that the curve passes between the bounds.
    """
    low, high = measure.support
    total = torch.zeros_like(x)
    for t, w, r in zip(measure.nodes, measure.weights, measure.residuals, strict=True):
        step = r <= 1e-3 * (high - low)
        gaps = t.diff()
        # the two ends of each half; an outermost half, or that of an eigenvalue, is a step
        left = torch.where(step, 0.0, torch.cat([gaps.new_zeros(1), gaps]))
        right = torch.where(step, 0.0, torch.cat([gaps, gaps.new_zeros(1)]))
        for start, length in ((t - left, left), (t, right)):
            for piece, out in zip(x.split(1024), total.split(1024), strict=True):
                past = piece[:, None] - start
                ramp = (past / length.clamp(min=1e-300)).clamp(0.0, 1.0)
                out += torch.where(length > 0, ramp, (past >= 0).double()) @ (w / 2)
    return total / measure.nodes.shape[0]


def _smooth(
    nodes: Tensor,
    weights: Tensor,
    outliers: Tensor,
    support: tuple[float, float],
    points: int,
    kappa: float,
    margin: float,
) -> Curve:
    where = "SpectralMeasure.density"
    points = _checks.positive_int(where, "points", points, minimum=2)
    margin = _checks.finite_float(where, "margin", margin, minimum=0.0)
    if not kappa > 1:
        raise CurvescopeError(where, "`kappa` must be greater than 1", given=repr(kappa))
    low, high = support
    # A spectrum of one point still gets a bump that can be seen.
    width = max(high - low, 1e-6 * max(abs(low), abs(high))) or 1.0
    half = width * (0.5 + margin)
    sigma = half * 2 / (max(nodes.shape[1] - 1, 1) * math.sqrt(8 * math.log(kappa)))
    half = max(half, width / 2 + 5 * sigma)
    center = (low + high) / 2
    grid = torch.linspace(center - half, center + half, points, dtype=torch.float64)
    cell = grid[1] - grid[0]
    edges = torch.cat([grid - cell / 2, grid[-1:] + cell / 2])
    samples, unseen = Samples((points,)), Samples((points,))
    for t, w in zip(nodes, weights, strict=True):
        shares = torch.special.ndtr((edges[:, None] - t) / sigma).diff(dim=0)
        samples.add((shares @ w / cell)[None])
        unseen.add(
            _neighbors(t, w, grid)[None] / (max(sigma, float(cell)) * math.sqrt(2 * math.pi))
        )
    return Curve(
        grid, samples.mean, samples.stderr, outliers, float(sigma), len(nodes), unseen.mean
    )


def _neighbors(t: Tensor, w: Tensor, grid: Tensor) -> Tensor:
    """The weight of the lighter of the two nodes around every point, ``[points]``."""
    t, order = t[w > 0].sort()
    w = w[w > 0][order]
    if len(t) == 0:
        return torch.zeros_like(grid)
    right = torch.searchsorted(t, grid).clamp(max=len(t) - 1)
    left = (torch.searchsorted(t, grid) - 1).clamp(min=0)
    return torch.minimum(w[left], w[right])
