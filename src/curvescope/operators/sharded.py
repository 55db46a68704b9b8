"""Curvature matrices of models whose weights are shared out over ranks.

Products are exact, by reverse mode over reverse mode, which works through gathered weights;
forward mode does not. Vectors lie over ranks as the weights do.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope._state import full_precision
from curvescope.engine.graph import GraphBatch
from curvescope.engine.plan import Plan
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.problem.losses import LossAt
from curvescope.problem.problem import Problem
from curvescope.problem.sharded import ShardedProblem
from curvescope.ranks import GroupLike
from curvescope.record.outputs import GradientOuter, LossHessian, Mix
from curvescope.vectors import Space


class ShardedCurvature(LinearOperator):
    """``residual · E + Jᵀ B J`` of a sharded problem; see :class:`ShardedHessian`."""

    def __init__(self, problem: ShardedProblem, mix: Mix) -> None:
        n = problem.params.size
        psd = mix.psd(convex=problem.loss.convex)
        super().__init__(
            (n, n), dtype=problem.dtype, device=problem.device, symmetric=True, psd=psd
        )
        self.problem, self.mix = problem, mix

    def _layout(self) -> Space:
        problem = self.problem
        return Space(
            self.shape[0], dtype=self.dtype, device=self.device, group=problem.group,
            parts=problem.parts(),
        )  # fmt: skip

    def _on_rows(self, rows: Tensor) -> Tensor:
        problem, total, weight = self.problem, torch.zeros_like(rows), 0.0
        with full_precision(self.device):
            problem.check_unchanged()
            for batch, counts in problem.batches():
                view = cast(Problem, problem if counts else _Silent(problem))
                with torch.enable_grad():
                    graph = GraphBatch(view, batch)
                    graph.product(self.mix, problem.local, rows, total)
                weight += graph.weight if counts else 0.0
                del graph
        whole = problem.group.sum(torch.tensor(weight, dtype=torch.float64)).item()
        if whole == 0:
            raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
        _checks.all_finite(f"{self} @ x", total)
        return total.div_(whole)

    def _matmat(self, X: Tensor) -> Tensor:
        space = self.domain
        return space.gather(self._on_rows(space.local(X.T.contiguous()))).T

    @property
    def plan(self) -> Plan:
        """What products will do."""
        problem = self.problem
        reason = (
            f"weights are shared out over {problem.group.size} ranks; they are gathered for each "
            "batch, and vectors lie as they do"
        )
        return Plan("sharded, by autograd", reason)

    def _scaled(self, factor: float) -> LinearOperator:
        return ShardedCurvature(self.problem, self.mix * factor)

    def _merged(self, a: float, b: float, other: LinearOperator) -> LinearOperator | None:
        if not isinstance(other, ShardedCurvature) or other.problem is not self.problem:
            return None
        return ShardedCurvature(self.problem, self.mix * a + other.mix * b)


def _problem(model: Any, data: tuple[Any, ...], options: dict[str, Any]) -> ShardedProblem:
    if isinstance(model, ShardedProblem):
        return model
    if not isinstance(model, nn.Module) or len(data) != 1:
        rule = "needs a model with DTensor parameters, and this rank's data"
        raise CurvescopeError("ShardedHessian", rule, given=type(model).__name__)
    return ShardedProblem(model, data[0], **options)


class ShardedHessian(ShardedCurvature):
    """``H`` of a model after ``fully_shard``, over the data of all ranks.

    A product takes a forward and a backward pass and one more backward pass for each column, on
    every batch, with the weights gathered; memory: whole weights and the graph of a batch, and
    each rank's part of vectors. All ranks call the same things.

    Args:
        model: See :class:`curvescope.problem.sharded.ShardedProblem`; or such a problem.
        data: This rank's batches.
        loss: As for :class:`curvescope.Problem`.
        group: The ranks; ``True`` for all processes.
    """

    def __init__(
        self, model: Any, *data: Any, loss: Any = "cross_entropy", group: GroupLike = True
    ) -> None:
        problem = _problem(model, data, {"loss": loss, "group": group})
        super().__init__(problem, Mix(1.0, ((LossHessian(), 1.0),)))


class ShardedGaussNewton(ShardedCurvature):
    """``G`` of a model after ``fully_shard``; see :class:`ShardedHessian`."""

    def __init__(
        self, model: Any, *data: Any, loss: Any = "cross_entropy", group: GroupLike = True
    ) -> None:
        problem = _problem(model, data, {"loss": loss, "group": group})
        super().__init__(problem, Mix(0.0, ((LossHessian(), 1.0),)))


class ShardedEmpiricalFisher(ShardedCurvature):
    """The second moment of gradients of a model after ``fully_shard``."""

    def __init__(
        self, model: Any, *data: Any, loss: Any = "cross_entropy", group: GroupLike = True
    ) -> None:
        problem = _problem(model, data, {"loss": loss, "group": group})
        super().__init__(problem, Mix(0.0, ((GradientOuter(), 1.0),)))


class _Silent:
    """A problem whose batch adds nothing: the rank takes part for the sake of the others."""

    def __init__(self, problem: ShardedProblem) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def loss_at(self, z: Tensor, batch: Any) -> LossAt:
        """A loss that is zero everywhere."""
        return _Zero(self._problem.loss_at(z, batch))


class _Zero(LossAt):
    """A loss at an output times zero."""

    weight, count = 0.0, 0

    def __init__(self, loss: LossAt) -> None:
        self._loss = loss

    def value(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self._loss.value())

    def gradient(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self._loss.gradient())

    def hessian(self, t: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(t)

    def terms(self, t: Tensor) -> Tensor:
        """As in the loss."""
        return self._loss.terms(t)

    def scatter(self, t: Tensor, like: Tensor) -> Tensor:
        """As in the loss."""
        return self._loss.scatter(t, like)

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """Zero."""
        return torch.zeros_like(self._loss.sample(samples, generator))
