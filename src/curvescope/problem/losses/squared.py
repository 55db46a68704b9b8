"""The squared error."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.problem.losses.base import DiagonalAt, Loss, Terms, need_tensor
from curvescope.problem.losses.probes import DiagonalRoot


class MeanSquare(Loss):
    """torch's ``mse_loss``: ``(z − y)²`` averaged over all entries of all batches.

    A term is a sample, ``(1/C) ‖z − y‖²`` with the weight ``C``, the number of its entries.

    Args:
        column: a target ``[N]`` belongs to an output ``[N, 1]``, as in Hugging Face's regression;
            torch would compare each with each.
    """

    name = "mse"
    average = "elements"
    modules = (nn.MSELoss,)
    functions = (F.mse_loss,)

    def __init__(self, *, column: bool = False) -> None:
        self.column = column

    def at(self, output: Tensor, target: Any) -> MeanSquareAt:
        """See :class:`Loss`."""
        if self.column and isinstance(target, Tensor) and output.shape == (*target.shape, 1):
            target = target[..., None]
        return MeanSquareAt(output, real_target(self.name, output, target))

    def check_target(self, target: Any) -> None:
        """See :class:`Loss`."""
        real_target(self.name, None, target)

    def probe(self, output: Tensor, target: Any) -> DiagonalRoot:
        """See :class:`Loss`."""
        y = real_target(self.name, output, target)
        root = torch.full_like(output, 2.0**0.5)
        return DiagonalRoot(F.mse_loss(output, y), float(output.numel()), root)


class MeanSquareAt(DiagonalAt):
    """``∂ℓ = 2 (z − y)``, ``∂²ℓ = 2 I``; the Fisher's likelihood is ``N(z, (C/2) I)``."""

    def __init__(self, output: Tensor, target: Tensor) -> None:
        self._error, self.count = output - target, output.shape[0]
        self.weight = float(output.numel())

    @property
    def _curvature(self) -> Tensor:  # type: ignore[override]
        return torch.full_like(self._error, 2.0)

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._error.square().sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return 2.0 * self._error

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        return 2.0 * t

    def slopes(self) -> Tensor:
        """See :class:`LossAt`."""
        return per_sample_slopes(self)

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`."""
        shape = (samples, *self._error.shape)
        noise = torch.randn(shape, generator=generator, dtype=self._error.dtype)
        return 2.0**0.5 * noise.to(self._error.device)

    def each(self) -> Terms:
        """See :class:`LossAt`."""
        return per_sample(self._error.square())


def real_target(name: str, output: Tensor | None, target: Any) -> Tensor:
    """A target of real numbers in the shape of the output, if that is known."""
    need_tensor(name, target)
    fits = output is None or target.shape == output.shape
    if not fits or not target.is_floating_point():
        shape = "" if output is None else f" of the output's shape {list(output.shape)}"
        rule = f"needs a real target{shape}"
        raise CurvescopeError(name, rule, given=f"{target.dtype} {list(target.shape)}")
    return target if output is None else target.to(output.dtype)


def per_sample(losses: Tensor) -> Terms:
    """Samples as terms: the mean over the entries of each, weighted by their number."""
    rows = losses.reshape(losses.shape[0], -1)
    return Terms(rows.mean(1), torch.full_like(rows[:, 0], rows.shape[1]), None)


def per_sample_slopes(at: DiagonalAt) -> Tensor:
    """``√C`` times the gradient of the mean over the ``C`` entries of each sample."""
    g = at.terms(at.gradient()[None])
    return g / g.shape[-1] ** 0.5
