"""Bounds on the error of the outermost Ritz values after ``k`` Lanczos steps.

Theorem 1 of Granziol, *Flatness is a False Friend* (FF, App. B, eq. 15), which is the bound of
Kaniel, Paige and Saad (Golub and Van Loan, *Matrix Computations*, thm 10.1.2). With eigenvalues
``λ_1 ≥ … ≥ λ_n``, Chebyshev polynomials ``T_k`` and the angles ``φ`` between the start vector and
the outermost eigenvectors, the Ritz values ``θ_1 ≥ … ≥ θ_k`` of ``k`` steps satisfy

    λ_1 ≥ θ_1 ≥ λ_1 − (λ_1 − λ_n) tan²φ_1 / T_{k−1}(1 + 2ρ_1)²,   ρ_1 = (λ_1 − λ_2) / (λ_2 − λ_n)
    λ_n ≤ θ_k ≤ λ_n + (λ_1 − λ_n) tan²φ_n / T_{k−1}(1 + 2ρ_n)²,
                                                          ρ_n = (λ_{n−1} − λ_n) / (λ_1 − λ_{n−1})

FF prints ``λ_m``, ``φ_1`` and ``ρ_1`` in the second line too; the theorem for ``−A`` is meant. The
start vector is random, so that ``cos²φ`` is about ``1/n`` (FF App. B).

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import acosh, cosh, exp, inf, log, sqrt

from torch import Tensor

from curvescope import _checks
from curvescope._checks import AnyFloat
from curvescope.errors import CurvescopeError

_LARGE = 300.0  # cosh overflows beyond 710; its square beyond 355


@dataclass(frozen=True)
class LanczosBounds:
    """Where the outermost Ritz values must lie after each number of ``steps``.

    ``largest_at_least <= θ_1 <= λ_1`` and ``λ_n <= θ_k <= smallest_at_most``; a bound that says
    less than ``[λ_n, λ_1]`` is cut there.
    """

    steps: tuple[int, ...]
    largest: AnyFloat  # λ_1
    smallest: AnyFloat  # λ_n
    largest_at_least: tuple[AnyFloat, ...]
    smallest_at_most: tuple[AnyFloat, ...]


def lanczos_bounds(
    values: Tensor, steps: Sequence[int], *, cosines: tuple[float, float] | None = None
) -> LanczosBounds:
    """The theorem's two intervals for a spectrum, step by step (FF eq. 15).

    Cost: none; no product is taken.

    Args:
        values: All eigenvalues ``[n]`` in any order; only the two at each end and ``n`` enter.
        steps: Numbers of Lanczos steps ``k``.
        cosines: ``|cos φ_1|`` and ``|cos φ_n|``, of the start vector with the eigenvectors of the
            largest and of the smallest eigenvalue; by default ``1/√n`` both, what they are for a
            random vector on average.

    >>> import torch
    >>> bounds = lanczos_bounds(torch.tensor([2.0, 1.0, 0.0]), [1, 2, 3], cosines=(0.6, 0.8))
    >>> [round(x, 6) for x in bounds.largest_at_least]  # T_1(3) = 3, T_2(3) = 17
    [0.0, 1.604938, 1.987697]
    """
    where = "lanczos_bounds"
    if values.ndim != 1 or len(values) < 2 or not bool(values.isfinite().all()):
        rule = "`values` must be at least two finite eigenvalues [n]"
        raise CurvescopeError(where, rule, given=list(values.shape))
    n = len(values)
    rising = values.double().sort().values
    cosines = (1 / sqrt(n),) * 2 if cosines is None else cosines
    for cosine in cosines:
        if not 0 <= cosine <= 1:
            raise CurvescopeError(where, "`cosines` must lie between 0 and 1", given=cosine)
    counts = tuple(_checks.positive_int(where, "steps", k) for k in steps)
    smallest, largest = float(rising[0]), float(rising[-1])
    above = _gaps(largest, float(rising[-2]), smallest, cosines[0], counts)
    below = _gaps(-smallest, -float(rising[1]), -largest, cosines[1], counts)
    return LanczosBounds(
        counts,
        largest,
        smallest,
        tuple(max(largest - gap, smallest) for gap in above),
        tuple(min(smallest + gap, largest) for gap in below),
    )


def _gaps(
    first: float, second: float, last: float, cosine: float, steps: Sequence[int]
) -> list[float]:
    """``(λ_1 − λ_n) tan²φ / T_{k−1}(1 + 2ρ)²`` for each ``k``; 0 from ``k = 2`` if λ_2 is λ_n."""
    if first == last:
        return [0.0] * len(steps)
    if cosine == 0.0:  # the start vector has no component along this eigenvector
        return [inf] * len(steps)
    tangent_squared = 1 / cosine**2 - 1
    return [
        (first - last) * tangent_squared * _inverse_square(first, second, last, k - 1)
        for k in steps
    ]


def _inverse_square(first: float, second: float, last: float, degree: int) -> float:
    """``1 / T_degree(1 + 2ρ)²``, by ``T_k(x) = cosh(k arcosh x)``; 0 where it underflows."""
    if degree == 0:
        return 1.0
    if second == last:
        return 0.0
    angle = degree * acosh(1 + 2 * (first - second) / (second - last))
    if angle > _LARGE:  # cosh y is e^y / 2
        return exp(max(-2 * (angle - log(2)), -745.0))
    return 1 / cosh(angle) ** 2
