"""Optimisers that act on all weights at once, as one flat vector.

A step is a handful of element-wise kernels however many layers there are. What changes from step to
step (learning rate, bias corrections) comes as a row of numbers on the device, computed beforehand
on the host, so that a step can be captured in a CUDA graph and never waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import sqrt

import torch
from torch import Tensor

from curvescope.training.recipe import Recipe

COEFFICIENTS = 3
"""The length of a step's row of numbers."""

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class Optimizer(ABC):
    """A rule for one step, with its memory in ``state``."""

    state: dict[str, Tensor]

    @abstractmethod
    def coefficients(self, step: int, rate: float) -> tuple[float, float, float]:
        """The numbers of the ``step``-th step of the whole training, counted from 1."""

    @abstractmethod
    def step(self, weights: Tensor, gradient: Tensor, row: Tensor) -> None:
        """Change ``weights`` in place; ``gradient`` may be overwritten."""


class SGD(Optimizer):
    """``m ← μ m + (g + γ w)``, ``w ← w − α m``."""

    def __init__(self, recipe: Recipe, weights: Tensor) -> None:
        self._momentum, self._decay = recipe.momentum, recipe.weight_decay
        self.state = {"momentum": torch.zeros_like(weights)} if self._momentum else {}

    def coefficients(self, step: int, rate: float) -> tuple[float, float, float]:
        """See :class:`Optimizer`."""
        return -rate, 0.0, 0.0

    def step(self, weights: Tensor, gradient: Tensor, row: Tensor) -> None:
        """See :class:`Optimizer`."""
        if self._decay:
            gradient.add_(weights, alpha=self._decay)
        if self._momentum:
            gradient = self.state["momentum"].mul_(self._momentum).add_(gradient)
        weights.addcmul_(gradient, row[0])


class Adam(Optimizer):
    """Adam, with the decay of the weights in the gradient or decoupled from it.

    ``m ← β₁ m + (1−β₁) g``, ``v ← β₂ v + (1−β₂) g²``,
    ``w ← w − α m / (1−β₁ᵗ) / (√(v / (1−β₂ᵗ)) + ε)``, before which the decoupled form multiplies
    ``w`` by ``1 − α γ`` and the other one adds ``γ w`` to ``g``.
    """

    def __init__(self, recipe: Recipe, weights: Tensor) -> None:
        self._decay = recipe.weight_decay
        self._decoupled = recipe.optimizer != "adam"
        self.state = {"mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}

    def coefficients(self, step: int, rate: float) -> tuple[float, float, float]:
        """See :class:`Optimizer`."""
        first, second = (1 - beta**step for beta in _BETAS)
        return -rate / first, 1 / sqrt(second), 1 - rate * self._decay

    def step(self, weights: Tensor, gradient: Tensor, row: Tensor) -> None:
        """See :class:`Optimizer`."""
        if self._decay:
            if self._decoupled:
                weights.mul_(row[2])
            else:
                gradient.add_(weights, alpha=self._decay)
        mean, square = self.state["mean"], self.state["square"]
        mean.lerp_(gradient, 1 - _BETAS[0])
        square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        torch.sqrt(square, out=gradient).mul_(row[1]).add_(_EPSILON)
        weights.addcdiv_(mean * row[0], gradient)


def make(recipe: Recipe, weights: Tensor) -> Optimizer:
    """The recipe's optimiser for this vector of weights."""
    return SGD(recipe, weights) if recipe.optimizer == "sgd" else Adam(recipe, weights)
