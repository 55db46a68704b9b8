"""Random cotangents of the output whose second moment is the output Hessian, differentiably.

``tr(Jᵀ B J) = E‖Jᵀ S ε‖²`` for ``B = S Sᵀ`` and ``E[ε εᵀ] = I``. To differentiate this by the
weights, ``S`` must be a smooth function of the output ``z``: for cross-entropy
``S = (I − p 1ᵀ) diag(√p)``, since ``S Sᵀ = diag(p) − p pᵀ``; for the logistic loss ``√(p(1 − p))``;
for a squared error a constant. (Drawing labels from the model, as a Monte-Carlo Fisher does, gives
the same trace but not its derivative, because the draw itself depends on the weights.)

Nothing here looks at the numbers, so that a GPU is never waited for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class OutputRoot(ABC):
    """``ε ↦ S(z) ε`` at one batch's output: ``ε: [terms, entries]``.

    ``value`` is the batch's mean loss, ``weight`` what it divides by, ``shape`` that of ``ε``.
    """

    value: Tensor
    weight: Tensor | float
    shape: tuple[int, int]

    @abstractmethod
    def __call__(self, epsilon: Tensor) -> Tensor:
        """The cotangent, shaped like ``z``."""


class DiagonalRoot(OutputRoot):
    """A Hessian that is diagonal in the output: ``S = diag(root)``, one row for each sample.

    >>> root = DiagonalRoot(torch.tensor(0.0), 2.0, torch.full((2, 3), 0.5))
    >>> root.shape, root(torch.ones(2, 3))[0].tolist()
    ((2, 3), [0.5, 0.5, 0.5])
    """

    def __init__(self, value: Tensor, weight: Tensor | float, root: Tensor) -> None:
        self.value, self.weight, self._root = value, weight, root
        self.shape = (root.shape[0], root.numel() // max(root.shape[0], 1))

    def __call__(self, epsilon: Tensor) -> Tensor:
        """See :class:`OutputRoot`."""
        return self._root * epsilon.reshape(self._root.shape)


class SoftmaxRoot(OutputRoot):
    """``S = √s (I − p 1ᵀ) diag(√p)`` for probabilities given as ``log_p: [terms, C]``.

    Args:
        value: the batch's mean loss.
        weight: what it divides by.
        log_p: the logarithms of ``p``, position by position.
        scale: ``√s: [terms]``, what the Hessian of each position is multiplied by, as a root.
        moved: the output's shape with the classes last.
        axis: where they are in the output.
    """

    def __init__(
        self,
        value: Tensor,
        weight: Tensor | float,
        log_p: Tensor,
        scale: Tensor,
        moved: torch.Size,
        axis: int,
    ) -> None:
        self.value, self.weight = value, weight
        self.shape = (log_p.shape[0], log_p.shape[1])
        self._p, self._moved, self._axis = log_p.exp(), moved, axis
        self._root = (0.5 * log_p).exp() * scale[:, None]

    def __call__(self, epsilon: Tensor) -> Tensor:
        """See :class:`OutputRoot`."""
        scaled = self._root * epsilon
        u = scaled - self._p * scaled.sum(-1, keepdim=True)
        return u.reshape(self._moved).movedim(-1, self._axis)
