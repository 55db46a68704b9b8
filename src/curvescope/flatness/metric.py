"""PP's generalization metric with every one of its terms (PP §4, eq. 6 to 9).

The posterior is ``q = N(w, H⁻¹)``, the prior ``p = N(0, σ² I)``. PP write

    KL(q‖p) = (1/2σ²) [tr H + ‖w‖²] + ½ log |H|                                        (eq. 6)
            ≤ tr H + ½ ‖w‖²     for σ = 1, with log |H| ≤ tr(H − I)                      (eq. 7)

up to constants, and compare solutions of one network by

    Σ_i log p(y_i|x_i, w) − ½ (1 + 1/N) log |H| − (1/2σ²N) [tr H + ‖w‖²].                (eq. 9)

The divergence of these two Gaussians has ``tr H⁻¹`` where eq. 6 has ``tr H``, so that eq. 6 is no
divergence and eq. 7 no bound of one; ``gaussian_kl`` is the divergence itself. ``log |H|`` and
``H⁻¹`` are those of ``G + δ I``, as a Hessian is singular. Column "a" of PP's tables is not eq. 7
but close to ``½‖w‖ + tr H / P``, the norm not squared (study ``granziol2020/mlp``).

References:
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.flatness.measures import scaled
from curvescope.flatness.network_scores import scores, weight_norms
from curvescope.flatness.report import EXACT_UP_TO
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import ExactSpectrum, exact_spectrum, logdet, spectral_measure, trace
from curvescope.spectra.estimate import Estimate

_LANCZOS_PROBES = 2
"""Start vectors of each Lanczos quadrature; two is the least that gives a standard error."""


@dataclass(frozen=True)
class PacMetric:
    """The terms of PP's eq. 6, 7 and 9, and the three equations.

    ``trace`` is that of ``matrix``; ``log_determinant`` and ``inverse_trace`` are those of
    ``G + damping · I``; ``log_likelihood`` is ``−N L``, the sum over the training set (for a
    squared error up to a constant).
    """

    matrix: str
    trace: Estimate[float]
    log_determinant: Estimate[float]
    inverse_trace: Estimate[float]
    squared_norm: float
    log_likelihood: float
    samples: int
    parameters: int
    prior_variance: float
    damping: float

    @property
    def equation_6(self) -> Estimate[float]:
        """``(1/2σ²)[tr H + ‖w‖²] + ½ log|H|``, as printed."""
        share = 0.5 / self.prior_variance
        return _sum(
            (self.trace, share), (self.log_determinant, 0.5), constant=share * self.squared_norm
        )

    @property
    def equation_7(self) -> Estimate[float]:
        """``tr H + ½‖w‖²``: the metric that PP recommend; lower is better."""
        return _sum((self.trace, 1.0), constant=0.5 * self.squared_norm)

    @property
    def equation_9(self) -> Estimate[float]:
        """The approximate evidence of eq. 9; higher is better."""
        share = 0.5 / (self.prior_variance * self.samples)
        return _sum(
            (self.log_determinant, -0.5 * (1 + 1 / self.samples)),
            (self.trace, -share),
            constant=self.log_likelihood - share * self.squared_norm,
        )

    @property
    def gaussian_kl(self) -> Estimate[float]:
        """``KL(N(w, (G + δ I)⁻¹) ‖ N(0, σ² I))``, constants included."""
        variance, n = self.prior_variance, self.parameters
        constant = 0.5 * (self.squared_norm / variance + n * (math.log(variance) - 1))
        return _sum(
            (self.inverse_trace, 0.5 / variance), (self.log_determinant, 0.5), constant=constant
        )


def pac_metric(
    problem: Problem,
    *,
    generator: torch.Generator,
    matrix: str = "hessian",
    prior_variance: float = 1.0,
    damping: float | None = None,
    probes: int = 32,
    steps: int = 32,
) -> PacMetric:
    """Every term of PP's metric on the problem's data.

    Cost: ``probes`` products for the trace (XTrace, which deflates the outliers) and
    ``4 · steps`` products with G; up to 1000 parameters all eigenvalues instead. For the trace from
    one mini-batch at the price of a training step see :func:`minibatch_metric`.

    Args:
        problem: The model with its training data.
        generator: The source of the probes.
        matrix: Whose trace: ``"hessian"`` or ``"ggn"``.
        prior_variance: ``σ²``.
        damping: ``δ`` in ``G + δ I``; default ``1/N``, see :func:`sharpness`.
        probes: Products for the trace.
        steps: Lanczos steps for the log-determinant and the trace of the inverse.

    Raises:
        CurvescopeError: If an argument is out of range.

    >>> from torch import nn
    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> _ = model.weight.detach().fill_(2.0)
    >>> data = (torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    >>> problem = Problem(model, data, loss="mse")
    >>> metric = pac_metric(problem, generator=torch.Generator(), damping=0.0)
    >>> round(metric.trace.value, 9), round(metric.equation_7.value, 9), metric.log_likelihood
    (2.0, 4.0, -4.0)
    >>> round(metric.gaussian_kl.value, 6) == round(0.5 * (0.5 + 4 - 1 + math.log(2)), 6)
    True
    """
    where = "pac_metric(problem)"
    if not isinstance(problem, Problem):
        raise CurvescopeError(where, "needs a Problem", given=type(problem).__name__)
    _checks.generator(where, generator)
    _checks.one_of(where, "matrix", matrix, ("hessian", "ggn"))
    variance = _checks.finite_float(where, "prior_variance", prior_variance)
    if variance <= 0:
        rule = "`prior_variance` must be positive"
        raise CurvescopeError(where, rule, given=repr(prior_variance))
    train = scores(problem)
    damping = 1 / train.samples if damping is None else damping
    damping = _checks.finite_float(where, "damping", damping, minimum=0.0)
    G, n = GaussNewton(problem), problem.params.size
    A = G if matrix == "ggn" else Hessian(problem)
    if n <= EXACT_UP_TO:
        spectrum = exact_spectrum(G)
        determinant, inverse = _exact_terms(spectrum, damping)
        traced = Estimate(float(A.dense().double().trace()), 0.0, n, n)
    else:
        traced = trace(A, probes=probes, method="xtrace", generator=generator)
        determinant = logdet(
            G, damping=damping, steps=steps, probes=_LANCZOS_PROBES, generator=generator
        )
        measure = spectral_measure(G, steps=steps, probes=_LANCZOS_PROBES, generator=generator)
        inverse = scaled(measure.expectation(lambda x: 1 / (x.clamp(min=0.0) + damping)), n)
    return PacMetric(
        matrix, traced, determinant, inverse, weight_norms(problem).squared,
        -train.loss.value * train.samples, train.samples, n, variance, damping,
    )  # fmt: skip


def _exact_terms(
    spectrum: ExactSpectrum, damping: float
) -> tuple[Estimate[float], Estimate[float]]:
    """``log det(G + δ I)`` and ``tr (G + δ I)⁻¹`` from all eigenvalues."""
    zeros = torch.zeros(spectrum.zeros, dtype=torch.float64)
    values = torch.cat([spectrum.values, zeros]).clamp(min=0.0) + damping
    n = spectrum.dimension
    return (
        Estimate(float(values.log().sum()), 0.0, spectrum.products, n),
        Estimate(float((1 / values).sum()), 0.0, spectrum.products, n),
    )


def _sum(*parts: tuple[Estimate[float], float], constant: float = 0.0) -> Estimate[float]:
    """A combination of independent estimates."""
    terms = [scaled(e, factor) for e, factor in parts]
    return Estimate(
        sum(e.value for e in terms) + constant,
        math.hypot(*(e.stderr for e in terms)),
        sum(e.products for e in terms),
        min(e.probes for e in terms),
        terms[0].status,
        sum(e.bias for e in terms),
    )
