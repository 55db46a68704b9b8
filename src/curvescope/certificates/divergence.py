"""Kullback–Leibler divergences as a certificate needs them: rounded toward the safe side.

A bound that was computed with rounding to nearest may be too small by an ulp, and then it is no
bound. Every function here that feeds a certificate returns a float that is at least the exact
value, by a margin that covers the rounding of each operation and an error of 4 ulps in ``log`` and
``log1p``.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

import torch
from torch import Tensor

from curvescope._checks import finite_float
from curvescope.errors import CurvescopeError

# The relative error of `binary_kl` is below 1e-13, see `_term`; this leaves an order of magnitude.
# Below _TINY floats lose their precision.
_MARGIN = 1e-12
_TINY = 1e-290
_SERIES = 0.02
"""Where the series of ``x − log(1 + x)`` replaces the difference."""


def upwards(x: float, ulps: int = 4) -> float:
    """The float that is ``ulps`` steps above ``x``.

    Covers the error of one operation of the C library that is accurate to ``ulps`` units in the
    last place; infinities stay.

    >>> upwards(1.0, 1) - 1.0 == 2.0**-52
    True
    """
    for _ in range(ulps):
        x = math.nextafter(x, math.inf)
    return x


def binary_kl(q: float, p: float) -> float:
    """``kl(q‖p) = q log(q/p) + (1−q) log((1−q)/(1−p))``, accurate also where ``p`` is close to q.

    With ``d = p − q`` and ``f(x) = x − log(1 + x) ≥ 0`` the linear terms of the two logarithms
    cancel: ``kl(q‖p) = q f(d/q) + (1−q) f(−d/(1−q))``. No difference of nearly equal numbers is
    left, so the relative error stays near 1e-13 even where the divergence is 1e-30.

    Args:
        q: The first probability, in [0, 1].
        p: The second one, in [0, 1].

    Raises:
        CurvescopeError: If one of them is not a probability.

    >>> binary_kl(0.0, 0.5) == math.log(2)
    True
    >>> binary_kl(0.25, 0.25), binary_kl(0.5, 1.0)
    (0.0, inf)
    """
    q, p = _probability("binary_kl", "q", q), _probability("binary_kl", "p", p)
    if q == p:
        return 0.0
    if (p == 0 and q > 0) or (p == 1 and q < 1):
        return math.inf
    d = p - q
    return _term(q, p, d) + _term(1 - q, 1 - p, -d)


def _term(a: float, b: float, d: float) -> float:
    """``a f(d/a) = d − a log(b/a)`` with ``d = b − a``: relative error below 1e-13.

    With ``x = d/a``, known to 2 ulps, ``f`` is a series of positive sum for small x. Elsewhere
    ``x − log1p(x)`` loses the factor ``log1p(x)/f(x)``, at most 200 at the switch, which is
    1.5e-13 for a ``log1p`` of 4 ulps and 4e-14 for the one ulp of any C library. As b goes to 0 so
    does ``1 + x``, which would keep nothing of b: there the logarithm is that of b/a.
    """
    if a == 0:
        return d
    x = d / a
    if abs(x) <= _SERIES:
        power, total = x * x, 0.0
        for k in range(2, 14):
            total += power / k if k % 2 == 0 else -power / k
            power *= x
        return a * total
    if x < -0.5:
        return d - a * math.log(b / a)
    if math.isinf(x):  # a is subnormal
        return d - a * (math.log(b) - math.log(a))
    return d - a * math.log1p(x)


def kl_inverse(q: float, r: float) -> float:
    """The upper inverse ``sup {p ∈ [q, 1] : kl(q‖p) ≤ r}``, never too small.

    The result ``p`` satisfies ``kl(q‖p) ≥ r`` in exact arithmetic, or it is 1 (Langford & Seeger
    2001; DH eq. 60 is solved for ``e(Q)`` by it). Bisection over the floats; ``p`` is the first one
    whose divergence exceeds ``r`` by the margin of :func:`binary_kl`'s own rounding. So it is too
    large by no more than two floats beyond the inverse of ``r (1 + 2e-12) + 2e-290``.

    Args:
        q: The observed frequency, in [0, 1].
        r: The allowed divergence, at least 0.

    Raises:
        CurvescopeError: If ``q`` is not a probability or ``r`` is negative or not a number.

    >>> abs(kl_inverse(0.0, 0.1) - (1 - math.exp(-0.1))) < 1e-12  # kl(0‖p) = −log(1−p)
    True
    >>> kl_inverse(0.3, 0.0), kl_inverse(1.0, 0.1), kl_inverse(0.2, 1e6)
    (0.3, 1.0, 1.0)
    """
    q = _probability("kl_inverse", "q", q)
    if math.isnan(r) or r < 0:
        raise CurvescopeError("kl_inverse", "`r` must be at least 0", given=repr(r))
    if r == 0 or q == 1:
        return q
    low, high, enough = q, 1.0, r * (1 + _MARGIN) + _TINY
    while True:
        middle = low + (high - low) / 2
        if middle in (low, high):
            return high
        if binary_kl(q, middle) >= enough:
            high = middle
        else:
            low = middle


def kl_lower_inverse(q: float, r: float) -> float:
    """The lower inverse ``inf {p ∈ [0, q] : kl(q‖p) ≤ r}``, never too large.

    By symmetry ``kl(q‖p) = kl(1−q‖1−p)``; the subtraction from 1 rounds downwards.

    >>> kl_lower_inverse(0.5, 0.0), kl_lower_inverse(0.0, 1.0)
    (0.5, 0.0)
    >>> 0 < kl_lower_inverse(0.1, 0.01) < 0.1
    True
    """
    q = _probability("kl_lower_inverse", "q", q)
    if q == 0 or r == 0:
        return q
    above = kl_inverse(min(1.0, upwards(1 - q)), r)
    return max(0.0, math.nextafter(1 - above, -math.inf))


def gaussian_kl(mean: Tensor, variance: Tensor, prior_mean: Tensor, prior_variance: float) -> float:
    """``KL(N(m, diag s) ‖ N(m₀, λ I))``, rounded up.

    ``½ Σ_i [s_i/λ − 1 − log(s_i/λ)] + ‖m − m₀‖² / (2λ)`` (DH App. G; eq. 62 prints the arguments
    the other way round, the bound needs the posterior first). An orthogonal change of basis leaves
    ``‖m − m₀‖`` and the prior ``λ I`` as they are, so the same formula holds with the variances of
    the coordinates in any orthonormal basis. Every term is non-negative, so the sum, taken in
    float64, loses at most ``n`` ulps, and that is added.

    Args:
        mean: The posterior mean ``m``, any shape.
        variance: The posterior variances ``s``, as many as means, all positive.
        prior_mean: The prior mean ``m₀``, in the same basis as ``mean``.
        prior_variance: The prior variance λ.

    Raises:
        CurvescopeError: If a variance is not positive and finite, or the sizes differ.

    >>> gaussian_kl(torch.zeros(3), torch.ones(3), torch.zeros(3), 1.0) < 1e-14
    True
    >>> round(gaussian_kl(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([0.0]), 1.0), 12)
    2.0
    """
    rate = finite_float("gaussian_kl", "prior_variance", prior_variance)
    if not rate > 0:
        rule = "`prior_variance` must be positive"
        raise CurvescopeError("gaussian_kl", rule, given=repr(prior_variance))
    if not mean.numel() == variance.numel() == prior_mean.numel():
        raise CurvescopeError(
            "gaussian_kl",
            "`mean`, `variance` and `prior_mean` must have as many entries as each other",
            given=f"{mean.numel()}, {variance.numel()} and {prior_mean.numel()}",
        )
    s = variance.detach().double().flatten()
    if not bool((torch.isfinite(s) & (s > 0)).all()):
        raise CurvescopeError("gaussian_kl", "every posterior variance must be positive and finite")
    excess = _excess(s / rate).sum()
    d = mean.detach().double().flatten() - prior_mean.detach().double().flatten()
    value = 0.5 * float(excess) + float(d @ d) / (2 * rate)
    if not math.isfinite(value):
        rule = "the divergence is not finite"
        raise CurvescopeError("gaussian_kl", rule, remedy="look for infinite or NaN means")
    # A term is off by at most 8 ulps of itself and 5 ulps of 1; sums add a relative n·ulp.
    ulp = 2.0**-52
    return upwards(value * (1 + (s.numel() + 16) * ulp) + 5 * ulp * s.numel())


def _excess(ratio: Tensor) -> Tensor:
    """``x − log(1 + x)`` with ``x = ratio − 1``, by its series where the difference would cancel.

    Below one half, ``ratio − 1`` would keep little of the ratio.
    """
    x = ratio - 1
    series = torch.zeros_like(x)
    power = x * x
    for k in range(2, 14):
        series = series + (power / k if k % 2 == 0 else -power / k)
        power = power * x
    logarithm = torch.where(x.abs() < 0.5, torch.log1p(x), ratio.log())
    return torch.where(x.abs() <= _SERIES, series, x - logarithm)


def total_upwards(terms: Iterable[float]) -> float:
    """The sum of a few terms, rounded up.

    >>> total_upwards([0.1] * 10) >= 1.0
    True
    """
    return upwards(math.fsum(terms), 1)


def quotient_upwards(numerator: int, denominator: int) -> float:
    """The smallest float that is at least ``numerator / denominator``.

    >>> quotient_upwards(1, 4), quotient_upwards(1, 3) > 1 / 3, quotient_upwards(1, 10) == 1 / 10
    (0.25, True, True)
    """
    nearest = numerator / denominator
    below = Fraction(nearest) < Fraction(numerator, denominator)
    return upwards(nearest, 1) if below else nearest


def decimal_upwards(value: float, digits: int) -> str:
    """The smallest decimal with so many digits after the point that is at least ``value``.

    >>> decimal_upwards(0.28511, 4), f"{0.28511:.4f}"
    ('0.2852', '0.2851')
    """
    return f"{Decimal(math.ceil(Fraction(value) * 10**digits)).scaleb(-digits):f}"


def percent_upwards(share: float) -> str:
    """A share as a percentage with two digits, rounded up.

    >>> percent_upwards(0.285111), percent_upwards(1.0)
    ('28.52 %', '100.00 %')
    """
    return f"{Decimal(math.ceil(Fraction(share) * 10**4)).scaleb(-2):f} %"


def _probability(where: str, name: str, value: float) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise CurvescopeError(where, f"`{name}` must be a probability in [0, 1]", given=repr(value))
    return number
