"""Where the eigenspace overlap of two models should peak, and why (DH thm F.1, F.3).

Under the Kronecker approximation the top eigenvectors of a layer's Hessian are ``r_i ⊗ t_j``,
ordered by ``τ_i γ_j`` (eigenpairs ``(τ, r)`` of ``E[M]`` and ``(γ, t)`` of ``E[x xᵀ]``). Output
neurons can be permuted freely, so that the ``r_i`` of two models are unrelated; of the ``t_j`` only
the first, close to the mean input, agrees between models. With ``f(k)`` of the first ``k``
eigenvectors built on ``t_1``, the expected overlap at dimension ``k`` is therefore about

    f⁽¹⁾(k) f⁽²⁾(k) / (m k) · (t_1⁽¹⁾ · t_1⁽²⁾)²

which is the theorem's line ``(k/m)(t_1·t_1)²`` as long as ``f(k) = k``: up to ``k = m`` when
``τ_m γ_1 > τ_1 γ_2``, else up to the last ``k`` with ``τ_k γ_1 > τ_1 γ_2``.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.structure.factors import KroneckerFactors

NEAR = 0.05  # |peak − m| / m up to which the verdict is "peak at m" (a convention)


@dataclass(frozen=True)
class RankOneCondition:
    """``τ_m γ_1 > τ_1 γ_2`` for one model: the smallest eigenvalue on ``t_1``, the largest off it.

    ``dimension`` is the largest ``k ≤ m`` whose first ``k`` eigenvectors are all built on ``t_1``.
    """

    smallest_on_mean: float  # τ_m γ_1
    largest_off_mean: float  # τ_1 γ_2
    dimension: int

    @property
    def holds(self) -> bool:
        """Whether Theorem F.1 applies up to dimension ``m``."""
        return self.smallest_on_mean > self.largest_off_mean


@dataclass(frozen=True)
class OverlapPrediction:
    """The predicted overlap of two models.

    ``line: [m]`` is Theorem F.1's, ``curve: [K]`` the expected overlap above at ``k = 1 … K``;
    ``verdict`` is ``"peak at m"``, ``"early peak"``, ``"delayed peak"`` or, for the output layer,
    ``"flat up to m"``, with the dimension of the ``peak`` and a ``reason`` in words.
    """

    outputs: int  # m
    alignment: float  # (t_1 · t_1')²
    conditions: tuple[RankOneCondition, RankOneCondition]
    dimension: int  # up to which the theorem's line holds
    line: Tensor
    curve: Tensor
    peak: int
    verdict: str
    reason: str


def overlap_prediction(
    first: KroneckerFactors, second: KroneckerFactors, *, output_layer: bool = False
) -> OverlapPrediction:
    """Theorem F.1 and the diagnosis of F.3.3 for one layer of two models.

    The peak is the first dimension whose expected overlap is not exceeded up to twice it: at ``m``
    where the theorem's condition holds; early where ``f`` stops growing (an output Hessian with few
    large eigenvalues); delayed where it still grows beyond ``m`` (one with a heavy tail).

    Args:
        first: the factors of a layer, without the bias.
        second: those of the same layer of an independently trained model.
        output_layer: neurons of the last layer are classes and cannot be permuted; the overlap then
            stays at ``(t_1·t_1')²`` up to ``m`` (F.3.2).

    >>> A = torch.diag(torch.tensor([10.0, 1.0]))
    >>> model = KroneckerFactors("fc", torch.diag(torch.tensor([3.0, 2.0])), A, A[0], bias=False)
    >>> prediction = overlap_prediction(model, model)
    >>> prediction.verdict, prediction.line
    ('peak at m', tensor([0.5000, 1.0000], dtype=torch.float64))
    """
    for name, factors in (("first", first), ("second", second)):
        if factors.bias:
            rule = "needs factors without the bias, use `bias=False`"
            raise CurvescopeError(f"overlap_prediction({name})", rule)
    m, n = len(first.output_hessian), len(first.autocorrelation)
    if (len(second.output_hessian), len(second.autocorrelation)) != (m, n):
        raise CurvescopeError(
            "overlap_prediction",
            "the two layers must have one shape",
            given=f"{m} × {n} and {len(second.output_hessian)} × {len(second.autocorrelation)}",
        )
    spectra = [_Spectrum.of(factors) for factors in (first, second)]
    alignment = float(torch.dot(spectra[0].t1, spectra[1].t1).square())
    conditions = (spectra[0].condition(), spectra[1].condition())
    dimension = min(c.dimension for c in conditions)
    counts = [s.counts(min(m * n, 10 * m)) for s in spectra]
    k = torch.arange(1, len(counts[0]) + 1, dtype=torch.float64)
    curve = alignment * counts[0] * counts[1] / (m * k)
    line = alignment * k[:m] / m
    if output_layer:
        line = torch.full((m,), alignment, dtype=torch.float64)
        curve = alignment * torch.minimum(counts[0], counts[1]) / k
        verdict, peak = "flat up to m", dimension
    else:
        verdict, peak = _verdict(curve, m, all(c.holds for c in conditions))
    reason = _reason(verdict, conditions, dimension, m, peak)
    return OverlapPrediction(
        m, alignment, conditions, dimension, line, curve, peak, verdict, reason
    )


@dataclass(frozen=True)
class _Spectrum:
    tau: Tensor
    gamma: Tensor
    t1: Tensor

    @classmethod
    def of(cls, factors: KroneckerFactors) -> _Spectrum:
        inputs, outputs = factors.eigen("input"), factors.eigen("output")
        return cls(outputs.values.cpu(), inputs.values.cpu(), inputs.first(1)[:, 0].cpu())

    def condition(self) -> RankOneCondition:
        off = float(self.tau[0] * self.gamma[1]) if len(self.gamma) > 1 else 0.0
        above = self.tau * self.gamma[0] > off
        return RankOneCondition(float(self.tau[-1] * self.gamma[0]), off, int(above.sum()))

    def counts(self, size: int) -> Tensor:
        """``f(k)`` for ``k = 1 … size``."""
        products = torch.outer(self.tau, self.gamma)
        order = products.flatten().argsort(descending=True, stable=True)[:size]
        return (order % len(self.gamma) == 0).double().cumsum(0)


def _verdict(curve: Tensor, m: int, holds: bool) -> tuple[str, int]:
    if holds:
        return "peak at m", m
    peak = len(curve)
    for k in range(1, len(curve) + 1):
        if bool((curve[k : 2 * k] <= curve[k - 1] * (1 + 1e-12)).all()):
            peak = k
            break
    if abs(peak - m) <= NEAR * m:
        return "peak at m", peak
    return ("early peak" if peak < m else "delayed peak"), peak


def _reason(
    verdict: str, conditions: tuple[RankOneCondition, ...], dimension: int, m: int, peak: int
) -> str:
    weakest = min(conditions, key=lambda c: c.smallest_on_mean - c.largest_off_mean)
    sign = ">" if weakest.holds else "≤"
    numbers = (
        f"τ_m γ_1 = {weakest.smallest_on_mean:.3g} {sign} τ_1 γ_2 = {weakest.largest_off_mean:.3g}"
    )
    if weakest.holds:
        rest = f"the first m = {m} eigenvectors are all built on the mean input"
    else:
        rest = f"only the first {dimension} of m = {m} eigenvectors are built on the mean input"
    cause = {
        "peak at m": "",
        "flat up to m": "; output neurons are classes and cannot be permuted",
        "early peak": f"; after {peak} the output Hessian has no more large eigenvalues",
        "delayed peak": f"; a heavy tail of the output Hessian goes on adding them up to {peak}",
    }[verdict]
    return f"{numbers}: {rest}{cause}"
