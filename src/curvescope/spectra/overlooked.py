"""Bounds on the probability that a Krylov decomposition has overlooked an eigenvector.

Let ``A V = V T + F G`` (:mod:`curvescope.spectra.krylov`) and ``A u = λ u`` with ``‖u‖ = 1``. Then
``a = Vᵀ u`` and ``b = Fᵀ u`` satisfy ``(λ − T) a = Gᵀ b`` and ``‖a‖² + ‖b‖² ≤ 1``. A start vector
``z`` lies in the range of ``[V, F]``, so that ``zᵀ u`` is a linear function of ``b`` alone, which
is small where ``λ`` is far, in units of the residuals, from all Ritz values. But ``z`` was drawn
without knowing ``u``: ``zᵀ u`` is a standard normal number, and seldom small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from curvescope.spectra.krylov import Krylov


def hidden(krylov: Krylov, points: list[float]) -> float:
    """A bound on the probability that some ``λ`` of ``points`` is an overlooked eigenvalue.

    The components ``Sᵀ u`` of an eigenvector along the start vectors fill the ellipsoid
    ``{M b : bᵀ N b ≤ 1}`` with ``M = Sᵀ (λ − T)⁻¹ Gᵀ + S_Fᵀ`` and ``N = I + G (λ − T)⁻² Gᵀ``. It
    reaches ``r_j`` along start vector ``j``, which a normal number keeps to with a probability of
    at most ``r_j √(2/π)``; for several start vectors, the product of their probabilities is at
    most ``p`` with the probability ``Q(q, −log p)`` (the regularized incomplete gamma function).
    Several points count by their sum, and directions that were dropped from the decomposition add
    to the reach. With a single start vector, ``r²`` is ``n`` times the Christoffel function of its
    spectral measure (:func:`christoffel`). 1 without start vectors.

    >>> from curvescope.operators.simple import Diagonal
    >>> krylov = Krylov(Diagonal(torch.linspace(0, 1, 100, dtype=torch.float64)), 50)
    >>> _ = krylov.inject(1, torch.Generator().manual_seed(0))
    >>> for _ in range(20): krylov.extend(1)
    >>> hidden(krylov, [1.1]) < 1e-3, hidden(krylov, [0.99]) > 0.1
    (True, True)
    """
    m, used = krylov.size, krylov.used
    if len(krylov.starts) == 0:
        return 1.0
    values, vectors = torch.linalg.eigh(krylov.projected)
    inside, pending = krylov.starts[:, :m] @ vectors, krylov.starts[:, m:used]
    coupling, identity = krylov.coupling @ vectors, torch.eye(used - m, dtype=torch.float64)
    total = 0.0
    for point in points:
        gaps = point - values
        gaps = torch.where(gaps.abs() > 1e-300, gaps, torch.full_like(gaps, 1e-300))
        M = (inside / gaps) @ coupling.T + pending
        norms = (coupling / gaps.square()) @ coupling.T + identity
        squares = (M @ torch.linalg.solve(norms, M.T)).diagonal()
        lost = krylov.dropped * torch.linalg.vector_norm(inside / gaps, dim=1)
        reach = squares.clamp(min=0.0).sqrt() + lost
        alone = (reach * math.sqrt(2 / math.pi)).clamp(max=1.0).sort().values
        together = alone.log().cumsum(0).neg()
        counts = torch.arange(1, len(alone) + 1, dtype=torch.float64)
        total += float(torch.special.gammaincc(counts, together).min())
    return min(1.0, total)


def inside(krylov: Krylov, point: float, best: Tensor, rows: Tensor) -> float:
    """How much of ``‖u‖²`` can lie in some ``rows`` if ``point`` is an eigenvalue.

    A random direction orthogonal to these rows says nothing about an eigenvector that lies in
    them, as one that has grown out of rounding may. The Ritz vectors at the ``best`` positions,
    from which ``u`` differs, are left out.
    """
    m, used = krylov.size, krylov.used
    values, vectors = torch.linalg.eigh(krylov.projected)
    gaps = point - values
    gaps = torch.where(gaps.abs() > 1e-300, gaps, torch.full_like(gaps, 1e-300))
    identity = torch.eye(used - m, dtype=torch.float64)
    coupling = krylov.coupling @ vectors
    norms = (coupling / gaps.square()) @ coupling.T + identity
    gaps[best] = math.inf
    components = torch.cat([vectors @ (coupling / gaps).T, identity])[rows]
    factor = torch.linalg.cholesky(norms)
    return float(torch.linalg.matrix_norm(torch.linalg.solve(factor, components.T), 2)) ** 2


def christoffel(T: Tensor, last: float, x: float) -> float:
    """``1 / Σ_j p_j(x)²`` for the orthonormal polynomials of a tridiagonal ``T: [s, s]``.

    No measure with the moments that ``T`` reveals has more mass at ``x``
    (Chebyshev–Markov–Stieltjes; Akhiezer 1965, ch. 2). ``last`` is the off-diagonal entry that
    follows ``T``; with it the sum runs over degrees 0 to ``s``, and a zero means that the measure
    is known: it has no mass outside the eigenvalues of ``T``. From the recurrence
    ``β_j p_{j+1} = (x − α_j) p_j − β_{j−1} p_{j−1}``.

    >>> T = torch.tensor([[0.0, 0.5], [0.5, 0.0]])      # Chebyshev: p_j(1) = j + 1
    >>> round(1 / christoffel(T, 0.5, 1.0), 6)
    14.0
    """
    alphas = torch.diagonal(T).tolist()
    betas = [*torch.diagonal(T, -1).tolist(), last]
    before, now, total = 0.0, 1.0, 1.0
    for j, (alpha, beta) in enumerate(zip(alphas, betas, strict=True)):
        if beta == 0:
            return 0.0
        before, now = now, ((x - alpha) * now - (betas[j - 1] * before if j else 0.0)) / beta
        total += now * now
        if total > 1e200:
            return 0.0
    return 1 / total


def products_to(edge: float, spectrum: tuple[float, float], factor: float) -> float:
    """How many products lower a bound at an ``edge`` beyond a ``spectrum`` by a ``factor``.

    One product lowers it by ``e^arccosh(1 + 2 gap/width)`` (the growth of Chebyshev polynomials).

    >>> round(products_to(1.1, (0.0, 1.0), 1000.0), 1), products_to(0.9, (0.0, 1.0), 1000.0)
    (11.1, inf)
    """
    low, high = spectrum
    if edge <= high:
        return math.inf
    if high <= low or factor <= 1:
        return 0.0
    return math.log(factor) / math.acosh(1 + 2 * (edge - high) / (high - low))
