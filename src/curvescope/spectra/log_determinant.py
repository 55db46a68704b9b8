"""Log-determinants by Lanczos quadrature (Ubaru, Chen and Saad 2017), bracketed from both sides.

    log det(A + δ I) = tr log(A + δ I) = n · E[vᵀ log(A + δ I) v]

For each probe, Gauss quadrature is an upper bound of ``vᵀ log(A + δ I) v`` (the even derivatives of
the logarithm are negative), and Gauss–Radau quadrature with a node fixed at a lower bound of the
spectrum is a lower bound (Golub and Meurant 2010, thm 6.4): half their distance bounds what too few
steps can do, which no number of probes would show.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import require_symmetric
from curvescope.spectra.estimate import Estimate, Samples
from curvescope.spectra.measure import quadrature
from curvescope.spectra.recurrence import Recurrence, Recurrent
from curvescope.spectra.resumable import End, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from curvescope.spectra.control import Control


def logdet(
    A: LinearOperator,
    *,
    damping: float,
    generator: torch.Generator,
    steps: int = 64,
    probes: int = 16,
    reorthogonalize: bool = True,
    **control: Unpack[Control],
) -> Estimate[float]:
    """``log det(A + damping · I)`` of a positive semi-definite ``A``.

    ``stderr`` is the spread over the probes, ``bias`` half the bracket of the quadrature, ``value``
    its middle; where nothing keeps the spectrum from zero, ``bias`` is infinite and ``value`` the
    upper end. A spectrum that reaches below ``−damping`` has no log-determinant and is refused.
    For an operator that is not declared ``psd`` the lower end of the spectrum is unknown: the
    smallest Ritz value less its residual stands in for it in ``bias``.

    Cost: ``steps · probes`` products; memory as :func:`curvescope.spectral_measure`.

    >>> from curvescope.operators.simple import Diagonal
    >>> A = Diagonal(torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64))
    >>> estimate = logdet(A, damping=1.0, generator=torch.Generator().manual_seed(0))
    >>> round(estimate.value, 9) == round(math.log(1 * 2 * 4), 9), estimate.bias
    (True, 0.0)
    """
    where = f"logdet({A})"
    require_symmetric(where, A)
    damping = _checks.finite_float(where, "damping", damping, minimum=0.0)
    steps = _checks.positive_int(where, "steps", steps)
    probes = _checks.positive_int(where, "probes", probes)
    _checks.generator(where, generator)
    return run(
        LogDeterminant, A, control, damping=damping, generator=generator, steps=steps,
        probes=probes, reorthogonalize=reorthogonalize,
    )  # fmt: skip


class LogDeterminant(Recurrent[Estimate[float]]):
    """A recurrence for each probe, and the brackets that they end with."""

    task = "logdet"

    def __init__(
        self,
        A: LinearOperator,
        *,
        damping: float,
        generator: torch.Generator,
        steps: int,
        probes: int,
        reorthogonalize: bool,
    ) -> None:
        self._operator, self._damping, self._probes = A, damping, probes
        rows = A.domain.random(probes, generator=generator)
        self.recurrence = Recurrence(A, rows, steps, reorthogonalize=reorthogonalize)

    def result(self, end: End) -> Estimate[float]:
        """The mean of the brackets' middles."""
        where, A = f"logdet({self._operator})", self._operator
        brackets = [
            _bracket(where, *self.recurrence.coefficients(i), A.psd, self._damping)
            for i in range(self._probes)
        ]
        middle, reach = zip(*brackets, strict=True)
        n, samples = A.shape[0], Samples(())
        samples.add(n * torch.tensor(middle, dtype=torch.float64))
        return Estimate(
            float(samples.mean),
            float(samples.stderr),
            end.products,
            self._probes,
            end.status,
            bias=n * sum(reach) / self._probes,
        )


def _bracket(
    where: str, alphas: Tensor, betas: Tensor, psd: bool, damping: float
) -> tuple[float, float]:
    """Middle and half width of the bracket of one probe's ``vᵀ log(A + damping I) v``."""
    nodes, weights = quadrature(alphas, betas)
    if psd:  # what is below zero is rounding
        nodes = nodes.clamp(min=0.0)
    smallest, residual = float(nodes[0]), float(betas[-1])
    if smallest + damping <= 0:
        value = f"the Ritz value {smallest + damping:.3g}"
        remedy = "use a psd operator such as GaussNewton, or more `damping`"
        rule = "A + damping·I must be positive definite"
        raise CurvescopeError(where, rule, given=value, remedy=remedy)
    upper = float((weights * torch.log(nodes + damping)).sum())
    if residual == 0:
        return upper, 0.0  # the quadrature is exact
    # A little below zero, so that T − end·I stays positive definite when A is singular.
    end = -1e-3 * damping if psd else smallest - residual
    if end + damping <= 0:
        return upper, math.inf  # the spectrum may reach zero: there is no lower bound
    nodes, weights = quadrature(*radau(alphas, betas, end))
    lower = min(upper, float((weights * torch.log(nodes.clamp(min=end) + damping)).sum()))
    return (upper + lower) / 2, (upper - lower) / 2


def radau(alphas: Tensor, betas: Tensor, end: float) -> tuple[Tensor, Tensor]:
    """Coefficients of the ``m + 1`` point rule with a node at ``end``, at or below all others.

    The added diagonal entry is ``end + β_m² e_mᵀ (T − end I)⁻¹ e_m`` (Golub 1973), computed by the
    last pivot of an ``L D Lᵀ`` factorization.

    >>> a, b = radau(torch.zeros(1).double(), torch.ones(1).double(), -2.0)
    >>> round(float(quadrature(a, b)[0][0]), 9)
    -2.0
    """
    pivot = alphas[0] - end
    for j in range(1, len(alphas)):
        pivot = alphas[j] - end - betas[j - 1] ** 2 / pivot
    last = end + betas[-1] ** 2 / pivot
    zero = torch.zeros(1, dtype=torch.float64)
    return torch.cat([alphas, last[None]]), torch.cat([betas, zero])
