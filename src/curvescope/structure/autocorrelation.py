"""How close a layer's input auto-correlation is to rank one (DH 4.3, E.1, tables 6–8).

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.kronecker import Eigen
from curvescope.structure.factors import KroneckerFactors


@dataclass(frozen=True)
class AutocorrelationStructure:
    """One layer's ``E[x xᵀ] = E[x] E[x]ᵀ + Σ_x``.

    ``alignment`` is ``(v_1ᵀ Ê[x])²`` of its first eigenvector, ``spectral_ratio`` is ``λ_1 / λ_2``,
    ``dominance`` is ``‖E[x] E[x]ᵀ‖ / ‖Σ_x‖`` (spectral norms), which bounds the spectral ratio from
    below by ``dominance − 1`` (DH eq. 52). A ratio is infinite where its divisor vanishes.
    """

    name: str
    alignment: float
    spectral_ratio: float
    dominance: float
    eigenvalues: Tensor  # [n], largest first


def autocorrelation_structure(factors: KroneckerFactors) -> AutocorrelationStructure:
    """The three numbers of DH's tables for one layer, and its spectrum for fig. 18.

    For a convolution ``Ê[x]`` is the first left singular vector of ``E[X]`` and ``Σ_x`` is
    ``E[X Xᵀ] − E[X] E[X]ᵀ`` (DH E.1). A bias that was included in the factors is left out. Along a
    training run: the factors at each checkpoint.

    >>> A, mean = torch.diag(torch.tensor([5.0, 1.0])), torch.tensor([2.0, 0.0])
    >>> factors = KroneckerFactors("fc", torch.eye(1), A, mean, bias=False)
    >>> s = autocorrelation_structure(factors)
    >>> s.alignment, s.spectral_ratio, s.dominance
    (1.0, 5.0, 4.0)
    """
    A, mean = factors.autocorrelation.double(), factors.mean_input.double()
    if factors.bias and A.ndim == 2 and len(A) > 1:
        A, mean = A[:-1, :-1], mean[:-1]
    mean = mean[:, None] if mean.ndim == 1 else mean
    pairs = Eigen.of(A, psd=True)
    values = pairs.values
    u, s, _ = torch.linalg.svd(mean, full_matrices=False)
    aligned = torch.dot(pairs.first(1)[:, 0], u[:, 0]).square() if s[0] > 0 else s.new_zeros(())
    covariance = _without_mean(A, mean).clamp_min(0)
    floor = len(A) * torch.finfo(A.dtype).eps * float(values[0])
    return AutocorrelationStructure(
        name=factors.name,
        alignment=float(aligned),
        spectral_ratio=_ratio(values[0], values[1] if len(values) > 1 else None, floor),
        dominance=_ratio(s[0].square(), covariance, floor),
        eigenvalues=values.to(factors.autocorrelation.dtype),
    )


def _without_mean(A: Tensor, mean: Tensor) -> Tensor:
    """The largest eigenvalue of ``A − M Mᵀ`` for ``M: [n, T]``.

    For a diagonal ``A`` no matrix ``[n, n]`` is formed: by Sylvester's law of inertia as many
    eigenvalues lie above ``λ`` as ``λ − A`` has negative ones more than ``1 + Mᵀ (λ − A)⁻¹ M``,
    and the interval is halved until nothing is left of it.

    >>> diagonal, M = torch.tensor([3.0, 2.0]).double(), torch.tensor([[1.0], [1.0]]).double()
    >>> [round(float(_without_mean(A, M)), 9) for A in (diagonal, torch.diag(diagonal))]
    [2.618033989, 2.618033989]
    """
    if A.ndim == 2:
        largest: Tensor = torch.linalg.eigvalsh(A - mean @ mean.T)[-1]
        return largest
    one = torch.eye(mean.shape[1], dtype=A.dtype, device=A.device)
    floor = torch.finfo(A.dtype).eps * A.amax()

    def above(level: Tensor) -> bool:
        gap = level - A
        gap = torch.where(gap.abs() < floor, floor, gap)
        inner = one + mean.T @ (mean / gap[:, None])
        return int((gap < 0).sum()) > int((torch.linalg.eigvalsh(inner) < 0).sum())

    low, high = A.new_zeros(()), A.amax()
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        low, high = (middle, high) if above(middle) else (low, middle)


def _ratio(a: Tensor, b: Tensor | None, floor: float) -> float:
    return float("inf") if b is None or float(b) <= floor else float(a / b)


@dataclass(frozen=True)
class Spread:
    """Mean, smallest and largest of some numbers: an entry of DH's tables 6, 7 and 8."""

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Spread:
        """The spread of at least one number."""
        values = [float(x) for x in numbers]
        if not values:
            raise CurvescopeError("Spread.of(numbers)", "needs at least one number")
        return cls(sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True)
class AutocorrelationTable:
    """One row of DH's tables 6–8: several layers, of several models."""

    layers: int
    alignment: Spread
    spectral_ratio: Spread
    dominance: Spread


def autocorrelation_table(
    structures: Iterable[AutocorrelationStructure],
) -> AutocorrelationTable:
    """Mean and range over layers and models (the paper leaves out a first layer of zero mean).

    >>> one = AutocorrelationStructure("fc1", 1.0, 4.0, 3.0, torch.ones(1))
    >>> two = AutocorrelationStructure("fc2", 0.5, 6.0, 5.0, torch.ones(1))
    >>> autocorrelation_table([one, two]).spectral_ratio
    Spread(mean=5.0, min=4.0, max=6.0)
    """
    networks = list(structures)
    return AutocorrelationTable(
        len(networks),
        Spread.of(s.alignment for s in networks),
        Spread.of(s.spectral_ratio for s in networks),
        Spread.of(s.dominance for s in networks),
    )
