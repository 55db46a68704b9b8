"""What a loss is: its value, gradient and Hessian with respect to the model's output.

A loss is an average of *terms*; each batch contributes the sum of its terms and their number, so
that unequal batches are weighted as the average over everything demands.

All products below take ``t: [k, *output.shape]``, ``k`` directions at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from curvescope._checks import CurvescopeError


class LossAt(ABC):
    """A loss at one batch's output ``z``, as a sum of ``count`` terms."""

    count: int

    @cached_property
    def draws(self) -> dict[Any, Tensor]:
        """A place for the samples that were drawn at this output."""
        return {}

    @abstractmethod
    def value(self) -> Tensor:
        """The sum of the terms."""

    @abstractmethod
    def gradient(self) -> Tensor:
        """``∂/∂z`` of the sum, shaped like ``z``."""

    @abstractmethod
    def hessian(self, t: Tensor) -> Tensor:
        """``∂²/∂z² [t]`` of the sum, for each of the ``k`` directions."""

    @abstractmethod
    def terms(self, t: Tensor) -> Tensor:
        """``[k, *z.shape]`` seen as ``[k, terms, entries of a term]``."""

    @abstractmethod
    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """``[samples, *z.shape]``: gradients at targets drawn from the model's own distribution.

        Their second moment, term by term, is the output Hessian: the Fisher information.
        """

    def scatter(self, t: Tensor, like: Tensor) -> Tensor:
        """The inverse of :meth:`terms`."""
        return t.reshape(like.shape)


class Loss(ABC):
    """A loss function that averages over samples."""

    name: str
    convex = True  # in the output, so that the Gauss–Newton matrix is positive semi-definite

    @abstractmethod
    def at(self, output: Tensor, target: Any) -> LossAt:
        """The loss at a batch's output; refuses targets that do not fit with one sentence."""


class BySample(LossAt):
    """A loss with a term per sample."""

    def terms(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`: one term per sample."""
        return t.flatten(2) if t.ndim > 2 else t.unsqueeze(-1)


def need_tensor(name: str, target: Any) -> None:
    """Refuse targets that are not a tensor."""
    if not isinstance(target, Tensor):
        msg = f"{name}: the target must be a tensor, got {type(target).__name__}"
        raise CurvescopeError(msg)
