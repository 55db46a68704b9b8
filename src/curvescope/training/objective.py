"""What training minimizes, how it counts right answers, and how it looks at data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from curvescope._checks import AnyFloat, CurvescopeError, one_of
from curvescope._state import held
from curvescope.problem.losses import BY_NAME, as_loss

LOSSES = tuple(name for name in BY_NAME if as_loss(name).has_classes)

Penalty = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A term of the loss, as a function of the model and a batch; differentiable in the weights.

It may have more, which training then uses: ``objective(model, X, y)`` with ``output`` and
``penalty`` from one pass of the model, ``tensors(device)`` with what decides its random numbers
(kept with the run's state), or ``reseed(seed)`` (called before each epoch), and ``capturable``.
"""

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Fit:
    """Mean loss and accuracy on a data set."""

    loss: AnyFloat
    accuracy: float

    @classmethod
    def of(cls, totals: Tensor | Sequence[float], samples: int) -> Fit:
        """From ``[sum of losses, right answers]``."""
        summed, right = totals.tolist() if isinstance(totals, Tensor) else totals
        return cls(summed / samples, right / samples)


def mean_loss(name: str, output: Tensor, target: Tensor) -> Tensor:
    """The mean loss of a batch: cross-entropy of ``[N, C]``, or logistic of ``[N, 1]``."""
    return as_loss(name).mean(output, target)


def outputs_and_penalty(
    model: nn.Module, penalty: Penalty | None, X: Tensor, y: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The model's outputs for a batch and the penalty, from one pass where the penalty can."""
    if penalty is None:
        return model(X), None
    both = getattr(penalty, "objective", None)
    if both is None:
        return model(X), penalty(model, X, y)
    found = both(model, X, y)
    return found.output, found.penalty


def right_answers(name: str, output: Tensor, target: Tensor) -> Tensor:
    """How many predictions of a batch are right, as a tensor on the device."""
    return as_loss(name).right(output, target)


def as_tensors(
    where: str, data: Any, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a data set, whole and on the device; bad data is refused.

    Args:
        where: The caller, for errors.
        data: A pair of tensors, or anything with such a pair as ``.tensors``.
        device: Where the model lives.
        dtype: The model's floating-point type.

    Raises:
        CurvescopeError: If there is no data, or inputs and labels do not belong together, or an
            input is not finite.
    """
    pair = getattr(data, "tensors", data)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        got = type(data).__name__
        msg = f"{where}: data must be a pair of tensors (X, y) or a data set, got {got}"
        raise CurvescopeError(msg)
    X, y = pair
    if not isinstance(X, Tensor) or not isinstance(y, Tensor):
        msg = f"{where}: inputs and labels must be tensors; use torch.as_tensor(...)"
        raise CurvescopeError(msg)
    if X.ndim < 2 or y.ndim != 1 or len(X) != len(y) or len(X) == 0:
        msg = (
            f"{where}: needs inputs [N, …] and labels [N] with N ≥ 1, got inputs {list(X.shape)} "
            f"and labels {list(y.shape)}"
        )
        raise CurvescopeError(msg)
    if y.is_floating_point() or y.dtype == torch.bool:
        msg = f"{where}: labels must be integers, got {y.dtype}; use y.long()"
        raise CurvescopeError(msg)
    if X.is_floating_point():
        X = X.to(dtype)
        if not bool(X.isfinite().all()):
            msg = f"{where}: the inputs contain NaN or infinity; remove them"
            raise CurvescopeError(msg)
    return X.to(device), y.to(device, torch.int64)


@torch.no_grad()
def check_fit(where: str, model: nn.Module, loss: str, X: Tensor, y: Tensor) -> None:
    """Refuse inputs, labels or a loss that do not fit the model, before a kernel fails on them."""
    try:
        with held(model, "eval"):
            output = model(X[:1])
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        msg = f"{where}: the model does not take inputs of shape {list(X.shape[1:])} ({reason})"
        raise CurvescopeError(msg) from None
    if not isinstance(output, Tensor) or output.ndim != 2:
        found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        msg = f"{where}: the model must give one row of outputs for each input, got {found}"
        raise CurvescopeError(msg)
    outputs = output.shape[1]
    classes = as_loss(loss).classes(outputs)
    if classes is None:
        msg = f"{where}: loss={loss!r} needs one output, the model has {outputs}"
        raise CurvescopeError(msg)
    least, most = int(y.min()), int(y.max())
    if least < 0 or most >= classes:
        msg = (
            f"{where}: labels must lie in 0 … {classes - 1} (the model has {outputs} outputs), "
            f"got {least if least < 0 else most}"
        )
        raise CurvescopeError(msg)


@torch.no_grad()
def totals(model: nn.Module, X: Tensor, y: Tensor, loss: str) -> Tensor:
    """``[sum of losses, right answers]`` on the device, without waiting for it."""
    result = torch.zeros(2, dtype=torch.float64, device=X.device)
    for inputs, targets in zip(X.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
        output = model(inputs)
        result[0] += mean_loss(loss, output, targets).double() * len(targets)
        result[1] += right_answers(loss, output, targets)
    return result


def evaluate(model: nn.Module, data: Any, *, loss: str = "cross_entropy") -> Fit:
    """Mean loss and accuracy of ``model`` in evaluation mode; the model is left as it was.

    Args:
        model: The network.
        data: A pair of tensors ``(X, y)`` or a data set; moved to the model's device.
        loss: ``"cross_entropy"``, or ``"binary_logistic"`` for one output and labels 0 and 1.

    Raises:
        CurvescopeError: If data, loss and model do not fit together.

    >>> model = nn.Linear(1, 2).requires_grad_(False)
    >>> _ = model.weight.copy_(torch.tensor([[0.0], [2.0]])), model.bias.zero_()
    >>> evaluate(model, (torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0])))
    Fit(loss=0.126928..., accuracy=1.0)
    """
    where = "evaluate(model, data)"
    one_of(where, "loss", loss, LOSSES)
    device, dtype = home(where, model)
    X, y = as_tensors(where, data, device, dtype)
    check_fit(where, model, loss, X, y)
    with held(model, "eval"):
        return Fit.of(totals(model, X, y, loss), len(y))


def home(where: str, model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The one device and the one floating-point type of all parameters."""
    parameters = list(model.parameters())
    if not parameters:
        msg = f"{where}: the model has no parameters"
        raise CurvescopeError(msg)
    kinds = {(p.device, p.dtype) for p in parameters}
    if len(kinds) > 1:
        found = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds))
        msg = f"{where}: all parameters must share one device and one dtype, got {found}"
        raise CurvescopeError(msg)
    return kinds.pop()


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, X: Tensor, batch_size: int) -> None:
    """Recompute the statistics of the batch norms that train as averages over batches of ``X``.

    The statistics of the weights' path say nothing about an average of weights; after averaging
    they are computed anew in one pass over the data, each batch counting the same. The model must
    be in the mode of its training.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.training and norm.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's way of saying: a plain average
    try:
        for inputs in X.split(batch_size):
            if len(inputs) > 1:  # one sample has no variance
                model(inputs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
