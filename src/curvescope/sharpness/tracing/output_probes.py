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
import torch.nn.functional as F
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.problem.losses import BinaryLogistic, CrossEntropy, Loss, MeanSquare


class OutputRoot(ABC):
    """``ε ↦ S(z) ε`` at one batch's output, term by term: ``ε: [terms, entries]``.

    ``value`` is the mean loss and ``count`` the number of its terms; ``shape`` is that of ``ε``.
    """

    value: Tensor
    count: Tensor | int
    shape: tuple[int, int]

    @abstractmethod
    def __call__(self, epsilon: Tensor) -> Tensor:
        """The cotangent, shaped like ``z``."""


def output_root(loss: Loss, z: Tensor, target: Tensor) -> OutputRoot:
    """The root for one of the three standard losses.

    Raises:
        CurvescopeError: If the loss is another one, or the target does not fit the output.

    >>> from curvescope.problem.losses import as_loss
    >>> root = output_root(as_loss("cross_entropy"), torch.zeros(1, 2), torch.tensor([0]))
    >>> root(torch.tensor([[1.0, 0.0]]))  # √p_0 (e_0 − p)
    tensor([[ 0.3536, -0.3536]])
    """
    if isinstance(loss, CrossEntropy):
        return _Softmax(loss, z, target)
    if isinstance(loss, BinaryLogistic):
        return _Logistic(loss, z, target)
    if isinstance(loss, MeanSquare):
        return _Square(loss, z, target)
    msg = (
        f"TraceRegulariser(kind='ggn'): the loss {loss.name!r} has no known root of its output "
        "Hessian; use 'cross_entropy' (also right for label smoothing, which does not change the "
        "Hessian), 'binary_logistic' or 'mse', or kind='hessian'"
    )
    raise CurvescopeError(msg)


class _Softmax(OutputRoot):
    def __init__(self, loss: CrossEntropy, z: Tensor, target: Tensor) -> None:
        last = target.shape == z.shape[:-1]
        if not last and target.shape != z.shape[:1] + z.shape[2:]:
            loss.at(z.detach(), target)  # says what is wrong
        self._dim, self._moved = (z.ndim - 1 if last else 1), z.movedim(-1 if last else 1, -1).shape
        rows, labels = z.movedim(self._dim, -1).flatten(0, -2), target.flatten()
        counted = labels != loss.ignore
        log_p = torch.log_softmax(rows, -1)
        self.count = counted.sum()
        self.value = F.nll_loss(log_p, labels, ignore_index=loss.ignore)
        self.shape = (rows.shape[0], rows.shape[1])
        self._p = log_p.exp()
        self._root = (0.5 * log_p).exp() * counted[:, None]

    def __call__(self, epsilon: Tensor) -> Tensor:
        scaled = self._root * epsilon
        u = scaled - self._p * scaled.sum(-1, keepdim=True)
        return u.reshape(self._moved).movedim(-1, self._dim)


class _Logistic(OutputRoot):
    def __init__(self, loss: BinaryLogistic, z: Tensor, target: Tensor) -> None:
        if z.numel() != z.shape[0] or target.numel() != z.shape[0]:
            loss.at(z.detach(), target)
        self.value = F.binary_cross_entropy_with_logits(z, target.to(z.dtype).reshape(z.shape))
        self.count, self.shape = z.shape[0], (z.shape[0], 1)
        self._root = (0.5 * (F.logsigmoid(z) + F.logsigmoid(-z))).exp()

    def __call__(self, epsilon: Tensor) -> Tensor:
        return self._root * epsilon.reshape(self._root.shape)


class _Square(OutputRoot):
    def __init__(self, loss: MeanSquare, z: Tensor, target: Tensor) -> None:
        if target.shape != z.shape:
            loss.at(z.detach(), target)
        self.value = F.mse_loss(z, target.to(z.dtype))
        self.count, self.shape = z.shape[0], (z.shape[0], z.numel() // z.shape[0])
        self._scale, self._like = (2.0 / self.shape[1]) ** 0.5, z.shape

    def __call__(self, epsilon: Tensor) -> Tensor:
        return self._scale * epsilon.reshape(self._like)
