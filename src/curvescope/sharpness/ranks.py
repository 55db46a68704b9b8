"""Rank correlations: how far two orders of the same runs agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's τ-b: concordant less discordant pairs, over pairs that are tied in neither.

    >>> kendall([1, 2, 3, 4], [4, 3, 2, 1]), round(kendall([1, 1, 2], [1, 2, 3]), 6)
    (-1.0, 0.816497)
    """
    pairs = list(itertools.combinations(range(len(a)), 2))
    left = [_sign(a[i] - a[j]) for i, j in pairs]
    right = [_sign(b[i] - b[j]) for i, j in pairs]
    free = math.sqrt(sum(map(abs, left)) * sum(map(abs, right)))
    return sum(x * y for x, y in zip(left, right, strict=True)) / free if free else math.nan


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of the ranks, ties sharing the mean of theirs.

    >>> spearman([1, 2, 3, 4], [1, 8, 27, 64]), spearman([1, 2, 3], [1, 3, 2])
    (1.0, 0.5)
    """
    x, y = _ranks(a), _ranks(b)
    middle = (len(a) + 1) / 2
    x, y = [r - middle for r in x], [r - middle for r in y]
    size = math.sqrt(sum(r * r for r in x) * sum(r * r for r in y))
    return sum(p * q for p, q in zip(x, y, strict=True)) / size if size else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2
        for value in values
    ]


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)


def chance(a: Sequence[float], b: Sequence[float], tau: float) -> float:
    """The share of random orders with at least as large a |τ|."""
    n = len(a)
    if math.isnan(tau):
        return 1.0
    if len(set(a)) < n or len(set(b)) < n:
        deviation = math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))
        return math.erfc(abs(tau) / deviation / math.sqrt(2))
    counts = [1]  # of the orders of m runs with k inversions; τ = 1 − 4 k / (n (n − 1))
    for m in range(2, n + 1):
        longer = [0] * (len(counts) + m - 1)
        for k, count in enumerate(counts):
            for more in range(m):
                longer[k + more] += count
        counts = longer
    extreme = sum(
        count
        for k, count in enumerate(counts)
        if abs(1 - 4 * k / (n * (n - 1))) >= abs(tau) - 1e-12
    )
    return extreme / math.factorial(n)
