"""The logistic loss of two classes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.problem.losses.base import BySample, Loss, need_tensor


class BinaryLogistic(Loss):
    """``log(1 + e^z) − y z`` with one output per sample and ``y`` in {0, 1}."""

    name = "binary_logistic"

    def at(self, output: Tensor, target: Any) -> BinaryLogisticAt:
        """See :class:`Loss`."""
        need_tensor(self.name, target)
        flat = output.flatten()
        if flat.shape[0] != output.shape[0] or target.numel() != flat.shape[0]:
            msg = (
                "binary_logistic: needs one output and one target per sample, got an output "
                f"{list(output.shape)} and a target {list(target.shape)}"
            )
            raise CurvescopeError(msg)
        y = target.to(output.dtype).reshape(output.shape)
        if bool(((y != 0) & (y != 1)).any()):
            msg = (
                f"binary_logistic: labels must be 0 or 1, got {float(y[(y != 0) & (y != 1)][0]):g}"
            )
            raise CurvescopeError(msg)
        return BinaryLogisticAt(output, y)


class BinaryLogisticAt(BySample):
    """``∂ℓ = p − y``, ``∂²ℓ = p (1 − p)``, with ``1 − p`` as the sigmoid of ``−z``."""

    def __init__(self, output: Tensor, target: Tensor) -> None:
        self._logits, self._target, self.count = output, target, output.shape[0]
        self._p, self._q = torch.sigmoid(output), torch.sigmoid(-output)
        self._curvature = self._p * self._q

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return F.binary_cross_entropy_with_logits(self._logits, self._target, reduction="sum")

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return torch.where(self._target == 1, -self._q, self._p)

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        return self._curvature * t

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`."""
        shape = (samples, *self._p.shape)
        uniform = torch.rand(shape, generator=generator, dtype=self._p.dtype).to(self._p.device)
        return torch.where(uniform < self._p, -self._q, self._p)
