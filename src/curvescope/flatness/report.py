"""The sharpness report: all measures of FF and PP at the end of training.

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.flatness.measures import CurvatureMeasures, estimated_measures, exact_measures
from curvescope.flatness.network_scores import (
    Scores,
    WeightNorms,
    on_other_data,
    scores,
    weight_norms,
)
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import ExactSpectrum, exact_spectrum, logdet
from curvescope.spectra.estimate import Estimate

EXACT_UP_TO = 1000
"""Parameters up to which every eigenvalue is computed."""
_LANCZOS_PROBES = 2
"""Start vectors of each Lanczos quadrature; two is the least that gives a standard error."""


@dataclass(frozen=True)
class SharpnessReport:
    """Sharpness and generalization of one model, every number with its error.

    ``log_determinant`` is ``log det(G + damping · I)`` of the Gauss–Newton matrix: a Hessian is
    singular, often indefinite, and has none. ``method`` is ``"exact"`` (all
    eigenvalues) or ``"estimate"``. All numbers are those of the problem's ``mode``; weight decay is
    in none of them. ``test`` and the gaps are None where no test data was given.
    """

    mode: str
    method: str
    hessian: CurvatureMeasures
    gauss_newton: CurvatureMeasures
    log_determinant: Estimate[float]
    damping: float
    weights: WeightNorms
    train: Scores
    test: Scores | None

    @property
    def loss_gap(self) -> Estimate[float] | None:
        """Test loss − training loss; positive where the model overfits."""
        return None if self.test is None else _difference(self.test.loss, self.train.loss)

    @property
    def error_gap(self) -> Estimate[float] | None:
        """Test error − training error, as a share (PP's ΔE is in per cent)."""
        if self.test is None or self.test.error is None or self.train.error is None:
            return None
        return _difference(self.test.error, self.train.error)


def sharpness(
    problem: Problem,
    *,
    generator: torch.Generator,
    test: Any = None,
    damping: float | None = None,
    method: str = "auto",
    probes: int = 16,
    steps: int = 32,
    tol: float = 1e-4,
) -> SharpnessReport:
    """Sharpness measures of H and G, weight norms, losses, errors and gaps (FF §4, PP §5).

    Cost with ``method="exact"``: one product for every parameter with each matrix. With
    ``"estimate"``, for each of the two matrices: the products of ten eigenpairs at the upper end
    and one at the lower, ``probes`` for the sums, and ``2 · steps`` (H: the sum of absolute
    eigenvalues, G: the log-determinant). All columns of a step go through the data together. In
    piecewise linear networks the trace of H is taken from G, which has the same diagonal.

    Args:
        problem: The model with its training data; its ``mode`` is that of the batch norms.
        generator: The source of all probes.
        test: Held-out data, as for :class:`curvescope.Problem`, or a ``Problem`` on it.
        damping: ``δ`` in ``log det(G + δ I)``. Default ``1/N`` for ``N`` training samples: the
            precision of a Gaussian prior of variance 1 (PP eq. 6), shared among the samples.
        method: ``"exact"``, ``"estimate"``, or ``"auto"``: exact up to 1000 parameters.
        probes: Random vectors for the sums.
        steps: Lanczos steps.
        tol: Relative residual of the eigenvalues at the ends.

    Raises:
        CurvescopeError: If an argument is out of range, or the test data does not fit the model.

    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> _ = model.weight.detach().zero_()
    >>> data = (torch.tensor([[2.0], [2.0]]).double(), torch.tensor([0, 1]))
    >>> report = sharpness(Problem(model, data), test=data, generator=torch.Generator())
    >>> report.hessian.largest.value, report.hessian.trace.value    # x² [[1, −1], [−1, 1]] / 4
    (2.0, 2.0)
    >>> report.train.error.value, report.error_gap.value, report.damping
    (0.5, 0.0, 0.5)
    """
    where = "sharpness(problem)"
    if not isinstance(problem, Problem):
        raise CurvescopeError(where, "needs a Problem", given=type(problem).__name__)
    _checks.generator(where, generator)
    _checks.one_of(where, "method", method, ("auto", "exact", "estimate"))
    probes = _checks.positive_int(where, "probes", probes, minimum=2)
    steps = _checks.positive_int(where, "steps", steps)
    held_out = test if test is None or isinstance(test, Problem) else on_other_data(problem, test)
    train = scores(problem)
    damping = 1 / train.samples if damping is None else damping
    damping = _checks.finite_float(where, "damping", damping, minimum=0.0)
    H, G = Hessian(problem), GaussNewton(problem)
    if method == "auto":
        method = "exact" if problem.params.size <= EXACT_UP_TO else "estimate"
    if method == "exact":
        spectrum = exact_spectrum(G)
        hessian, gauss_newton = exact_measures(exact_spectrum(H)), exact_measures(spectrum)
        determinant = _exact_logdet(spectrum, damping)
    else:
        hessian, gauss_newton = (
            estimated_measures(A, generator=generator, probes=probes, steps=steps, tol=tol)
            for A in (H, G)
        )
        if H.same_diagonal() is not H:  # tr H = tr G, which varies less from probe to probe
            hessian = replace(hessian, trace=gauss_newton.trace)
        determinant = logdet(
            G, damping=damping, steps=steps, probes=_LANCZOS_PROBES, generator=generator
        )
    return SharpnessReport(
        problem.mode, method, hessian, gauss_newton, determinant, damping,
        weight_norms(problem), train, None if held_out is None else scores(held_out),
    )  # fmt: skip


def sharpness_by_mode(
    problem: Problem, *, generator: torch.Generator, test: Any = None, **settings: Any
) -> dict[str, SharpnessReport]:
    """Reports with batch norms in eval and in train mode (FF §4: "massively magnified").

    In train mode the batches of the problem are those of the batch norms. A model without batch
    norm is measured once and listed under both names. ``test`` is data, not a problem, because it
    takes part in both modes.

    >>> model = nn.Linear(1, 2)
    >>> data = (torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    >>> reports = sharpness_by_mode(Problem(model, data), generator=torch.Generator())
    >>> list(reports), reports["train"].hessian is reports["eval"].hessian
    (['eval', 'train'], True)
    """
    if isinstance(test, Problem):
        raise CurvescopeError(
            "sharpness_by_mode(test)", "needs data", given="a Problem, which has a mode of its own"
        )
    held_out = list(test) if isinstance(test, list) else test
    first = on_other_data(problem, problem.data, mode="eval")
    reports = {"eval": sharpness(first, generator=generator, test=held_out, **settings)}
    if not has_batch_statistics(problem.model):
        return {**reports, "train": replace(reports["eval"], mode="train")}
    second = on_other_data(problem, problem.data, mode="train")
    return {**reports, "train": sharpness(second, generator=generator, test=held_out, **settings)}


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether some layer uses batch statistics in one mode and running statistics in the other."""
    return any(
        isinstance(m, nn.modules.batchnorm._NormBase) and m.running_mean is not None
        for m in model.modules()
    )


def _exact_logdet(spectrum: ExactSpectrum, damping: float) -> Estimate[float]:
    """``log det(G + δ I)`` from all eigenvalues, negative ones set to 0; −∞ for ``δ = 0``."""
    values = torch.cat([spectrum.values, torch.zeros(spectrum.zeros, dtype=torch.float64)])
    logs = (values.clamp(min=0.0) + damping).log()
    return Estimate(float(logs.sum()), 0.0, spectrum.products, spectrum.dimension)


def _difference(a: Estimate[float], b: Estimate[float]) -> Estimate[float]:
    """``a − b`` of independent estimates."""
    return Estimate(
        a.value - b.value, (a.stderr**2 + b.stderr**2) ** 0.5, 0, min(a.probes, b.probes)
    )
