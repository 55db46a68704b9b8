"""The squared error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.problem.losses.base import BySample, Loss, need_tensor


class MeanSquare(Loss):
    """``(1/C) ‖z − y‖²`` per sample: torch's ``mse_loss``, which averages over entries as well."""

    name = "mse"

    def at(self, output: Tensor, target: Any) -> MeanSquareAt:
        """See :class:`Loss`."""
        need_tensor(self.name, target)
        if target.shape != output.shape or not target.is_floating_point():
            msg = (
                f"mse: needs a real target of the output's shape {list(output.shape)}, got "
                f"{target.dtype} {list(target.shape)}"
            )
            raise CurvescopeError(msg)
        return MeanSquareAt(output, target.to(output.dtype))


class MeanSquareAt(BySample):
    """``∂ℓ = (2/C)(z − y)``, ``∂²ℓ = (2/C) I``; the Fisher's likelihood is ``N(z, (C/2) I)``."""

    def __init__(self, output: Tensor, target: Tensor) -> None:
        self._error, self.count = output - target, output.shape[0]
        self._scale = 2.0 * output.shape[0] / output.numel()

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return 0.5 * self._scale * self._error.square().sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._scale * self._error

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        return self._scale * t

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`."""
        shape = (samples, *self._error.shape)
        noise = torch.randn(shape, generator=generator, dtype=self._error.dtype)
        return self._scale**0.5 * noise.to(self._error.device)
