"""Any other callable, differentiated twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.problem.losses.base import BySample, Loss


class UserLoss(Loss):
    """A callable of ``(output, target)`` that averages over the samples of a batch."""

    convex = False  # not known to be

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def at(self, output: Tensor, target: Any) -> UserLossAt:
        """See :class:`Loss`."""
        return UserLossAt(self._function, output, target)


class UserLossAt(BySample):
    """Value, gradient and Hessian by differentiating the callable at the output."""

    def __init__(self, function: Callable[..., Tensor], output: Tensor, target: Any) -> None:
        self.count = output.shape[0]
        with torch.enable_grad():
            self._z = output.detach().requires_grad_()
            self._loss = function(self._z, target)
            if not isinstance(self._loss, Tensor) or self._loss.numel() != 1:
                msg = "Problem(loss): the callable must return one number, the mean over the batch"
                raise CurvescopeError(msg)
            (self._g,) = torch.autograd.grad(self._loss.reshape(()), self._z, create_graph=True)

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._loss.detach().reshape(()) * self.count

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._g.detach() * self.count

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        if not self._g.requires_grad:  # a loss that is linear in the output
            return torch.zeros_like(t)
        rows = [torch.autograd.grad(self._g, self._z, column, retain_graph=True)[0] for column in t]
        return torch.stack(rows) * self.count

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`: a callable does not say which distribution it belongs to."""
        msg = (
            "MonteCarloFisher: a loss given as a callable has no known distribution of targets; "
            "use loss='cross_entropy', 'binary_logistic' or 'mse', or take GaussNewton"
        )
        raise CurvescopeError(msg)
