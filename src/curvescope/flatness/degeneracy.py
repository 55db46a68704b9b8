"""The share of eigenvalues at zero along training, beside the rank bound of FF.

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import RankDegeneracy, rank_bound, rank_degeneracy, spectral_measure


@dataclass(frozen=True)
class DegeneracyPoint:
    """Mass at zero of both matrices after ``epoch``, with the training loss there."""

    epoch: float
    loss: float
    hessian: RankDegeneracy
    gauss_newton: RankDegeneracy


@dataclass(frozen=True)
class DegeneracyHistory:
    """Points along training and FF's bound ``4 d_y (Σ N_l + d_x)`` of the rank (§3.2).

    ``predicted`` is the share of the spectrum that the bound puts at zero, ``1 − bound/P``; below
    zero, the bound says nothing. It is proved for one sample only (see
    :func:`curvescope.spectra.neuron_rank_bound`). FF find it "largely respected": the mass of one
    Ritz value falls short of it where the mass at zero splits, which the pair repairs.
    """

    points: tuple[DegeneracyPoint, ...]
    parameters: int
    bound: int

    @property
    def predicted(self) -> float:
        """``1 − bound / P``."""
        return 1 - self.bound / self.parameters


def rank_history(
    problems: Iterable[tuple[float, Problem]],
    *,
    generator: torch.Generator,
    steps: int = 100,
    probes: int = 1,
    count: str = "channels",
) -> DegeneracyHistory:
    """The mass of the Ritz values nearest zero, of H and G, at points of a training run.

    Cost: ``steps · probes`` products with each matrix for each point; FF take 100 steps.

    Args:
        problems: Pairs of an epoch (any number) and the problem at its weights, of one network.
            They are taken one at a time, so that a generator expression may load one set of
            weights after the other into the same model.
        generator: The source of the start vectors.
        steps: Lanczos steps.
        probes: Start vectors.
        count: How the bound counts neurons, see :func:`curvescope.rank_bound`.

    Raises:
        CurvescopeError: If there is no problem, or their sizes differ.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    >>> problem = Problem(model, (torch.ones(1, 4).double(), torch.tensor([0])))
    >>> history = rank_history([(0, problem)], generator=torch.Generator().manual_seed(0), probes=4)
    >>> history.bound, history.parameters                             # 4 · 2 · (2 + 2 + 4), 16
    (64, 16)
    """
    where = "rank_history(problems)"
    _checks.generator(where, generator)
    points: list[DegeneracyPoint] = []
    size = bound = 0
    for epoch, problem in problems:
        if not points:
            size, bound = problem.params.size, _bound(where, problem, count)
        elif problem.params.size != size:
            rule = "all problems must have the same variables"
            raise CurvescopeError(where, rule, given=f"{size} and then {problem.params.size}")
        hessian, gauss_newton = (
            rank_degeneracy(spectral_measure(A, steps=steps, probes=probes, generator=generator))
            for A in (Hessian(problem), GaussNewton(problem))
        )
        loss = float(problem.value())
        points.append(DegeneracyPoint(float(epoch), loss, hessian, gauss_newton))
    if not points:
        raise CurvescopeError(where, "needs at least one pair (epoch, problem)", given="none")
    return DegeneracyHistory(tuple(points), size, bound)


def _bound(where: str, problem: Problem, count: str) -> int:
    batch = next(problem.batches())
    if not isinstance(batch.inputs, Tensor):
        raise CurvescopeError(where, "the bound of the rank needs a model of one input tensor")
    with problem.evaluation():
        classes = problem.output(problem.variables(), batch).shape[-1]
    return rank_bound(problem.model, tuple(batch.inputs.shape[1:]), classes, count=count)
