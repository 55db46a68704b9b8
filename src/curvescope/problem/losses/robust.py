"""Huber's loss and its scaled form, smooth L1: quadratic near the target, linear beyond."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.problem.losses.base import DiagonalAt, Loss, Terms, no_likelihood
from curvescope.problem.losses.probes import DiagonalRoot
from curvescope.problem.losses.squared import per_sample, per_sample_slopes, real_target


class _Robust(Loss):
    """``h`` times Huber's loss with the bend at ``δ``."""

    average = "elements"

    def __init__(self, name: str, delta: float, height: float) -> None:
        self.name, self.delta, self._height = name, delta, height

    def at(self, output: Tensor, target: Any) -> HuberAt:
        """See :class:`Loss`."""
        error = output - real_target(self.name, output, target)
        return HuberAt(error, self.delta, self._height, self.name)

    def check_target(self, target: Any) -> None:
        """See :class:`Loss`."""
        real_target(self.name, None, target)

    def probe(self, output: Tensor, target: Any) -> DiagonalRoot:
        """See :class:`Loss`."""
        error = output - real_target(self.name, output, target)
        value = _values(error, self.delta, self._height).mean()
        curvature = _curvature(error.detach(), self.delta, self._height)
        return DiagonalRoot(value, float(output.numel()), curvature.sqrt())


class Huber(_Robust):
    """torch's ``huber_loss``: ``r²/2`` to ``|r| = δ``, then ``δ (|r| − δ/2)``; mean over entries.

    Its second derivative is 1 within and 0 beyond (and at the bend, as torch has it).

    >>> at = Huber(delta=2.0).at(torch.tensor([[1.0, 5.0]]), torch.zeros(1, 2))
    >>> at.value().item(), at.gradient().tolist(), at.hessian(torch.ones(1, 1, 2)).tolist()
    (8.5, [[1.0, 2.0]], [[[1.0, 0.0]]])
    """

    modules = (nn.HuberLoss,)
    functions = (F.huber_loss,)

    def __init__(self, *, delta: float = 1.0) -> None:
        delta = _checks.finite_float("Huber", "delta", delta, minimum=0.0)
        if delta == 0.0:
            raise CurvescopeError("Huber", "`delta` must be positive", given="0")
        super().__init__(f"huber(delta={delta:g})", delta, 1.0)


class SmoothL1(_Robust):
    """torch's ``smooth_l1_loss``: Huber's loss with ``δ = β``, divided by ``β``.

    With ``β = 0`` it is ``|r|``, torch's ``l1_loss``, which has no curvature anywhere.
    """

    modules = (nn.SmoothL1Loss, nn.L1Loss)
    functions = (F.smooth_l1_loss, F.l1_loss)

    def __init__(self, *, beta: float = 1.0) -> None:
        beta = _checks.finite_float("SmoothL1", "beta", beta, minimum=0.0)
        super().__init__(f"smooth_l1(beta={beta:g})", beta, 1 / beta if beta else 1.0)


class HuberAt(DiagonalAt):
    """``∂ℓ = h · clamp(r, −δ, δ)``, ``∂²ℓ = h [|r| < δ]``; a term is a sample."""

    def __init__(self, error: Tensor, delta: float, height: float, name: str) -> None:
        self._error, self._delta, self._height, self._name = error, delta, height, name
        self.count = error.shape[0]
        self.weight = float(error.numel())
        self._curvature = _curvature(error, delta, height)

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return _values(self._error, self._delta, self._height).sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        if not self._delta:
            return self._error.sign()
        return self._height * self._error.clamp(-self._delta, self._delta)

    def slopes(self) -> Tensor:
        """See :class:`LossAt`."""
        return per_sample_slopes(self)

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`: the Fisher of Huber's density is not this Hessian."""
        no_likelihood(self._name)

    def each(self) -> Terms:
        """See :class:`LossAt`."""
        return per_sample(_values(self._error, self._delta, self._height))


def _values(error: Tensor, delta: float, height: float) -> Tensor:
    if not delta:
        return error.abs()
    return height * F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


def _curvature(error: Tensor, delta: float, height: float) -> Tensor:
    return (error.abs() < delta).to(error.dtype) * height
