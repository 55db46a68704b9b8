"""Traces on sub-samples of the data: ``tr A`` is unbiased, ``tr A²`` is not (PP fig. 2).

``A = (1/N) Σ_n A_n`` over the samples, ``A_B`` the same mean over ``B`` of them drawn without
replacement. Then ``E tr A_B = tr A`` (PP eq. 11) and

    E tr A_B² = tr A² + (1/B) · (N − B)/(N − 1) · ν,      ν = (1/N) Σ_n ‖A_n − A‖_F²,

which is PP eq. 12 with its noise term ``P σ²`` written out: it falls like ``1/B``.

References:
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.flatness.network_scores import on_other_data
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.control import Status
from curvescope.spectra.estimate import Estimate, Samples
from curvescope.vectors import Space


@dataclass(frozen=True)
class Subsample:
    """Means over random sub-samples of ``size`` samples; ``stderr`` is the error of the mean.

    ``trace_spread`` and ``square_spread`` are the standard deviations from one sub-sample to the
    next: the error of a single mini-batch, probes included.
    """

    size: int
    trace: Estimate[float]
    square_sum: Estimate[float]
    trace_spread: float
    square_spread: float


@dataclass(frozen=True)
class SubsamplingStudy:
    """Traces on all ``samples`` samples, and on sub-samples of several sizes."""

    matrix: str
    samples: int
    trace: Estimate[float]
    square_sum: Estimate[float]
    subsamples: tuple[Subsample, ...]

    @property
    def noise(self) -> float:
        """``ν``, fitted by least squares to the excess of all sizes."""
        pairs = [(self._share(s.size), s.square_sum.value) for s in self.subsamples]
        weights = sum(share**2 for share, _ in pairs)
        excess = sum(share * (value - self.square_sum.value) for share, value in pairs)
        return excess / weights if weights else 0.0

    def predicted_square_sum(self, size: int) -> float:
        """``E tr A_B²`` by the formula, with the fitted ``ν``."""
        return self.square_sum.value + self._share(size) * self.noise

    def _share(self, size: int) -> float:
        return (self.samples - size) / ((self.samples - 1) * size) if self.samples > 1 else 0.0


def subsampling_study(
    problem: Problem,
    sizes: Sequence[int],
    *,
    generator: torch.Generator,
    matrix: str = "hessian",
    repeats: int = 8,
    probes: int = 16,
) -> SubsamplingStudy:
    """``tr A`` and ``tr A²`` on all samples and on random sub-samples (PP fig. 2).

    One block of ``probes`` random vectors gives both sums. It is the same for all of the data and
    for every sub-sample, so that its error cancels in comparisons of them; ``stderr`` of the whole
    is that over the probes, of sub-samples that over the ``repeats``. The data is gathered on the
    model's device.

    Cost: ``probes`` products on the whole data, and ``repeats · probes`` products for each size on
    so many samples.

    Args:
        problem: The model and all of its data, in ``mode="eval"``.
        sizes: The sizes ``B`` of the sub-samples.
        generator: The source of sub-samples and probes.
        matrix: ``"hessian"`` or ``"ggn"``.
        repeats: Sub-samples of each size.
        probes: Random vectors; exact sums if they are as many as parameters.

    Raises:
        CurvescopeError: If a size is larger than the data, or the mode is ``"train"``, in which the
            mean over samples is not a mean of samples.

    >>> from torch import nn
    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> X = torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double()
    >>> problem = Problem(model, (X, torch.zeros(4, 1).double()), loss="mse")
    >>> study = subsampling_study(problem, [4], generator=torch.Generator().manual_seed(0))
    >>> round(study.trace.value, 9), round(study.square_sum.value, 9)
    (15.0, 225.0)
    """
    where = "subsampling_study(problem, sizes)"
    _checks.generator(where, generator)
    _checks.one_of(where, "matrix", matrix, ("hessian", "ggn"))
    repeats = _checks.positive_int(where, "repeats", repeats, minimum=2)
    probes = _checks.positive_int(where, "probes", probes)
    if problem.mode == "train":
        rule = "needs `mode='eval'`, in `mode='train'` samples do not enter as a mean"
        raise CurvescopeError(where, rule)
    inputs, target = _gathered(problem)
    total = target.shape[0]
    kind = Hessian if matrix == "hessian" else GaussNewton
    A = kind(problem)
    # Whole on every rank: each takes the sub-samples of the data of all by itself.
    whole_space = Space(A.shape[0], dtype=A.dtype, device=A.device)
    vectors = None if probes >= A.shape[0] else whole_space.random(probes, generator=generator)
    whole = [_mean_of(m) for m in _moments(A, vectors)]
    subsamples = []
    for size in sizes:
        if not 1 <= _checks.positive_int(where, "every size", size) <= total:
            rule = f"`sizes` must be at most the {total} samples of the data"
            raise CurvescopeError(where, rule, given=size)
        rows = []
        for _ in range(repeats):
            chosen = torch.randperm(total, generator=generator, device=generator.device)[:size]
            part = on_other_data(problem, _taken(inputs, target, chosen), group=None)
            rows.append([m.mean() for m in _moments(kind(part), vectors)])
        subsamples.append(_subsample(size, torch.tensor(rows, dtype=torch.float64)))
    return SubsamplingStudy(matrix, total, whole[0], whole[1], tuple(subsamples))


def _moments(A: LinearOperator, vectors: Tensor | None) -> tuple[Tensor, Tensor]:
    """Samples of ``tr A`` and ``tr A²`` from rows of signs, or all entries without them.

    The exact sums come as ``n`` equal samples.
    """
    if vectors is None:
        matrix, n = A.dense().double(), A.shape[0]
        return matrix.trace().expand(n), matrix.square().sum().expand(n)
    images = (A @ vectors.T).T
    return (vectors.double() * images).sum(1), images.double().square().sum(1)


def _mean_of(values: Tensor) -> Estimate[float]:
    samples = Samples((), values.device)
    samples.add(values)
    return samples.estimate(len(values), Status.DONE)


def _subsample(size: int, rows: Tensor) -> Subsample:
    traces, squares = (_mean_of(column) for column in rows.T)
    spread = rows.std(0)
    return Subsample(size, traces, squares, float(spread[0]), float(spread[1]))


def _gathered(problem: Problem) -> tuple[Any, Tensor]:
    """All inputs and targets, each as one tensor (or tree of them)."""
    batches = problem.data.of_all()
    inputs = pytree.tree_map(lambda *parts: torch.cat(parts), *(b.inputs for b in batches))
    return inputs, torch.cat([b.target for b in batches])


def _taken(inputs: Any, target: Tensor, chosen: Tensor) -> list[tuple[Any, Tensor]]:
    chosen = chosen.to(target.device)
    return [(pytree.tree_map_only(Tensor, lambda t: t[chosen], inputs), target[chosen])]
