"""Rank correlations of two measures over the same runs."""

from __future__ import annotations

import math
from collections.abc import Sequence


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's τ-b: concordant less discordant pairs, over pairs that are tied in neither.

    NaN if one sequence is constant or has fewer than two values.

    >>> kendall([1, 2, 3, 4], [4, 3, 2, 1]), round(kendall([1, 1, 2], [1, 2, 3]), 6)
    (-1.0, 0.816497)
    """
    return _kendall(a, b)[0] if _varied(a) and _varied(b) else math.nan


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of the ranks, ties sharing the mean of theirs.

    >>> round(spearman([1, 2, 3, 4], [1, 8, 27, 64]), 9), round(spearman([1, 2, 3], [1, 3, 2]), 9)
    (1.0, 0.5)
    """
    from scipy.stats import spearmanr  # a second to import

    return float(spearmanr(a, b).statistic) if _varied(a) and _varied(b) else math.nan


def chance(a: Sequence[float], b: Sequence[float]) -> float:
    """The fraction of random orders with at least as large a |τ|; exact without ties.

    >>> round(chance([1, 2, 3, 4], [1, 2, 3, 4]), 6)           # 2 of 24
    0.083333
    """
    return _kendall(a, b)[1] if _varied(a) and _varied(b) else 1.0


def _kendall(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    from scipy.stats import kendalltau

    tied = len(set(a)) < len(a) or len(set(b)) < len(b)
    result = kendalltau(a, b, method="asymptotic" if tied else "exact")
    return float(result.statistic), float(result.pvalue)


def _varied(values: Sequence[float]) -> bool:
    return len(set(values)) > 1
