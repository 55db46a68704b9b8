"""Losses: their value, gradient and Hessian with respect to the model's output.

A loss is an average of *terms*; each batch contributes the sum of its terms and their number, so
that unequal batches are weighted as the average over everything demands. For the three standard
losses the output Hessian is applied in closed form; any other callable is differentiated twice.

All products below take ``t: [k, *output.shape]``, ``k`` directions at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope._checks import CurvescopeError, one_of


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


def as_loss(loss: str | nn.Module | Callable[..., Tensor] | Loss) -> Loss:
    """The loss that a name, a torch loss module or a callable stands for."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        one_of("Problem(loss)", "loss", loss, _BY_NAME)
        return _BY_NAME[loss]()
    if isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "mean":
        if loss.weight is None and loss.label_smoothing == 0.0:
            return CrossEntropy(ignore=loss.ignore_index)
    if isinstance(loss, nn.MSELoss) and loss.reduction == "mean":
        return MeanSquare()
    if isinstance(loss, nn.BCEWithLogitsLoss) and loss.reduction == "mean":
        if loss.weight is None and loss.pos_weight is None:
            return BinaryLogistic()
    if getattr(loss, "reduction", "mean") != "mean":
        msg = f"Problem(loss): the loss must average over samples, got reduction={loss.reduction!r}"  # type: ignore[union-attr]
        raise CurvescopeError(msg)
    if not callable(loss):
        msg = f"Problem(loss): needs a name or a callable of (output, target), got {loss!r}"
        raise CurvescopeError(msg)
    return UserLoss(loss)


# Cross-entropy ----------------------------------------------------------------------------------


class CrossEntropy(Loss):
    """``−log softmax(z)[y]`` averaged over all positions but those whose target is ``ignore``.

    Classes are the last dimension when ``target.shape == output.shape[:-1]`` (``[N, C]``, and
    ``[N, T, C]`` as in language models), else the second one (torch's ``[N, C, …]``).
    """

    name = "cross_entropy"

    def __init__(self, ignore: int = -100) -> None:
        self._ignore = ignore

    @property
    def ignore(self) -> int:
        """The target of positions that do not count."""
        return self._ignore

    def at(self, output: Tensor, target: Any) -> CrossEntropyAt:
        """See :class:`Loss`."""
        _need_tensor(self.name, target)
        if target.is_floating_point() or target.dtype == torch.bool:
            msg = f"cross_entropy: targets must be class indices (int64), got {target.dtype}"
            raise CurvescopeError(msg)
        if output.ndim >= 2 and target.shape == output.shape[:-1]:
            dim = output.ndim - 1
        elif output.ndim >= 3 and target.shape == output.shape[:1] + output.shape[2:]:
            dim = 1
        else:
            msg = (
                f"cross_entropy: an output {list(output.shape)} needs class indices of shape "
                f"{list(output.shape[:-1])}, got a target of shape {list(target.shape)}"
            )
            raise CurvescopeError(msg)
        counted = target != self._ignore
        classes = output.shape[dim]
        wrong = counted & ((target < 0) | (target >= classes))
        if bool(wrong.any()):
            msg = (
                f"cross_entropy: labels must lie in 0 … {classes - 1} (the model has {classes} "
                f"outputs), got {int(target[wrong][0])}"
            )
            raise CurvescopeError(msg)
        return CrossEntropyAt(output, target.long(), dim, counted)


class CrossEntropyAt(LossAt):
    """``∂ℓ = p − e_y``, ``∂²ℓ[t] = p ⊙ t − p ⟨p, t⟩`` (TR 5.1).

    A network that fits its data has ``p_y`` so close to 1 that ``p_y − 1`` and ``t_y − ⟨p, t⟩``
    would be nothing but rounding. The first is taken as ``−Σ p_c`` over the other classes, and
    ``t`` is counted from its entry at the likeliest class, which changes nothing else.
    """

    def __init__(self, output: Tensor, target: Tensor, dim: int, counted: Tensor) -> None:
        self._logits, self._dim, self._shape = output, dim, output.shape
        self.count = int(counted.sum())
        self._all = self.count == counted.numel()
        self._target = target if self._all else target.masked_fill(~counted, 0)
        self._counted = counted.unsqueeze(dim)
        self._p = torch.softmax(output, dim)
        self._top = output.argmax(dim, keepdim=True)
        if not self._all:
            self._p = self._p * self._counted

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        losses = -torch.log_softmax(self._logits, self._dim).gather(
            self._dim, self._target.unsqueeze(self._dim)
        )
        return (losses if self._all else losses * self._counted).sum()

    def _minus_label(self, p: Tensor, target: Tensor) -> Tensor:
        label = target.unsqueeze(self._dim)
        others = p.scatter(self._dim, label, 0.0)
        return others.scatter(self._dim, label, -others.sum(self._dim, keepdim=True))

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        return self._minus_label(self._p, self._target)

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        pt = self._p * (t - t.gather(self._dim + 1, self._top.expand(len(t), *self._top.shape)))
        return pt.addcmul_(self._p.expand_as(t), pt.sum(self._dim + 1, keepdim=True), value=-1)

    def terms(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`: one term per position."""
        return t.movedim(self._dim + 1, -1).flatten(1, -2)

    def scatter(self, t: Tensor, like: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        moved = like.movedim(self._dim + 1, -1)
        return t.reshape(moved.shape).movedim(-1, self._dim + 1)

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`."""
        p = torch.softmax(self._logits, self._dim).movedim(self._dim, -1)
        drawn = torch.multinomial(
            p.flatten(0, -2).cpu(), samples, replacement=True, generator=generator
        ).to(p.device)
        labels = drawn.T.reshape(samples, *p.shape[:-1])
        return torch.stack([self._minus_label(self._p, label) for label in labels])


# Binary logistic and mean square: a term per sample ---------------------------------------------


class _BySample(LossAt):
    def terms(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`: one term per sample."""
        return t.flatten(2) if t.ndim > 2 else t.unsqueeze(-1)


class BinaryLogistic(Loss):
    """``log(1 + e^z) − y z`` with one output per sample and ``y`` in {0, 1}."""

    name = "binary_logistic"

    def at(self, output: Tensor, target: Any) -> BinaryLogisticAt:
        """See :class:`Loss`."""
        _need_tensor(self.name, target)
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


class BinaryLogisticAt(_BySample):
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


class MeanSquare(Loss):
    """``(1/C) ‖z − y‖²`` per sample: torch's ``mse_loss``, which averages over entries as well."""

    name = "mse"

    def at(self, output: Tensor, target: Any) -> MeanSquareAt:
        """See :class:`Loss`."""
        _need_tensor(self.name, target)
        if target.shape != output.shape or not target.is_floating_point():
            msg = (
                f"mse: needs a real target of the output's shape {list(output.shape)}, got "
                f"{target.dtype} {list(target.shape)}"
            )
            raise CurvescopeError(msg)
        return MeanSquareAt(output, target.to(output.dtype))


class MeanSquareAt(_BySample):
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


# Any other callable -----------------------------------------------------------------------------


class UserLoss(Loss):
    """A callable of ``(output, target)`` that averages over the samples of a batch."""

    convex = False  # not known to be

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def at(self, output: Tensor, target: Any) -> UserLossAt:
        """See :class:`Loss`."""
        return UserLossAt(self._function, output, target)


class UserLossAt(_BySample):
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


_BY_NAME: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy,
    "binary_logistic": BinaryLogistic,
    "mse": MeanSquare,
}


def _need_tensor(name: str, target: Any) -> None:
    if not isinstance(target, Tensor):
        msg = f"{name}: the target must be a tensor, got {type(target).__name__}"
        raise CurvescopeError(msg)
