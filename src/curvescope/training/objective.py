"""The objective of training, the count of right answers, and the checks of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from curvescope._checks import AnyFloat
from curvescope._state import held
from curvescope.errors import CurvescopeError
from curvescope.problem.losses import Loss, as_loss

Penalty = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A term of the loss, as a function of the model and a batch; differentiable in the weights.

It may have more, which training then uses: ``objective(model, X, y)`` with ``output`` and
``penalty`` from one pass of the model, ``tensors(device)`` with what decides its random numbers
(kept with the run's state), or ``reseed(seed)`` (called before each epoch), and ``capturable``.
"""

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Fit:
    """Mean loss and accuracy on a data set; NaN is the accuracy of a loss without right answers.

    Where labels stand at several positions, as the next characters of a text do, both are means
    over all positions of all samples.
    """

    loss: AnyFloat
    accuracy: AnyFloat

    @classmethod
    def of(cls, totals: Tensor | Sequence[float], samples: int) -> Fit:
        """From ``[sum of losses, right answers]``."""
        summed, right = totals.tolist() if isinstance(totals, Tensor) else totals
        return cls(summed / samples, right / samples)

    @property
    def error(self) -> float:
        """The share of wrong answers."""
        return 1.0 - self.accuracy


def outputs_and_penalty(
    model: nn.Module, penalty: Penalty | None, X: Tensor, y: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The model's outputs for a batch and the penalty, from one pass where the penalty can."""
    if penalty is None:
        return model(X), None
    both = getattr(penalty, "objective", None)
    if both is None:
        return model(X), penalty(model, X, y)
    parts = both(model, X, y)
    return parts.output, parts.penalty


def right_answers(loss: Loss, output: Tensor, target: Tensor) -> Tensor | float:
    """How many predictions of a batch are right, as a tensor on the device; NaN if none can be.

    Counted in samples: of those with ``T`` positions each right answer is ``1/T``.
    """
    right = loss.right(output, target)
    return nan if right is None else right.double() / positions(target)


def positions(target: Tensor) -> int:
    """At how many positions each sample has a label."""
    return target[0].numel()


def labeled(loss: Loss) -> bool:
    """Whether targets are labels: the loss tells classes apart by one output or by two."""
    return any(loss.classes(outputs) is not None for outputs in (1, 2))


def as_tensors(
    where: str, data: Any, device: torch.device, dtype: torch.dtype, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a data set, whole and on the device; bad data is refused.

    Args:
        where: The caller, for errors.
        data: A pair of tensors, or anything with such a pair as ``.tensors``.
        device: Where the model lives.
        dtype: The model's floating-point type.
        loss: Says whether targets are labels.

    Raises:
        CurvescopeError: If there is no data, or inputs and targets do not belong together, or one
            of them is not finite.
    """
    pair = getattr(data, "tensors", data)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        rule = "`data` must be a pair of tensors (X, y) or a data set"
        raise CurvescopeError(where, rule, given=type(data).__name__)
    X, y = pair
    if not isinstance(X, Tensor) or not isinstance(y, Tensor):
        rule = "inputs and targets must be tensors"
        raise CurvescopeError(where, rule, remedy="use torch.as_tensor(...)")
    if labeled(loss):
        _check_labels(where, X, y)
        y = y.to(torch.int64)
    elif X.ndim < 2 or y.ndim < 1 or len(X) != len(y) or len(X) == 0:
        given = f"inputs {list(X.shape)} and targets {list(y.shape)}"
        rule = "needs inputs [N, …] and targets [N, …] with N ≥ 1"
        raise CurvescopeError(where, rule, given=given)
    X, y = (t.to(dtype) if t.is_floating_point() else t for t in (X, y))
    for words, tensor in (("inputs", X), ("targets", y)):
        if not bool(tensor.isfinite().all()):
            rule = f"the {words} contain NaN or infinity"
            raise CurvescopeError(where, rule, remedy="remove them")
    return X.to(device), y.to(device)


def _check_labels(where: str, X: Tensor, y: Tensor) -> None:
    if X.ndim < 2 or y.ndim < 1 or len(X) != len(y) or y.numel() == 0:
        given = f"inputs {list(X.shape)} and labels {list(y.shape)}"
        rule = "needs inputs [N, …] and labels [N], or [N, T] at several positions, with N ≥ 1"
        raise CurvescopeError(where, rule, given=given)
    if y.is_floating_point() or y.dtype == torch.bool:
        raise CurvescopeError(
            where, "labels must be integers", given=y.dtype, remedy="use y.long()"
        )


def check_even(where: str, loss: Loss, mean: str, remedy: str) -> None:
    """Refuse a loss that weighs samples differently, as one with class weights does."""
    if not loss.even:
        rule = f"the loss {loss.name!r} weighs samples differently, which {mean} does not"
        raise CurvescopeError(where, rule, remedy=remedy)


@torch.no_grad()
def check_fit(where: str, model: nn.Module, loss: Loss, X: Tensor, y: Tensor) -> None:
    """Refuse inputs and targets that do not fit the model, before a kernel fails on them."""
    few = X[:1] if labeled(loss) else X[:2]
    try:
        with held(model, "eval"):
            output = model(few)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        rule = f"the model does not take inputs of shape {list(X.shape[1:])} ({reason})"
        raise CurvescopeError(where, rule) from None
    if not isinstance(output, Tensor) or (labeled(loss) and output.ndim != y.ndim + 1):
        given = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        each = "input" if y.ndim == 1 or not labeled(loss) else "label"
        rule = f"the model must give one row of outputs for each {each}"
        raise CurvescopeError(where, rule, given=given)
    if not labeled(loss):
        loss.check_target(y)
        loss.at(output, y[:2])
        return
    outputs = output.shape[1] if y.ndim == 1 else loss.outputs(output, y[:1])
    classes = loss.classes(outputs)
    if classes is None:
        rule = f"`loss={loss.name!r}` needs one output, the model has {outputs}"
        raise CurvescopeError(where, rule)
    least, most = int(y.min()), int(y.max())
    if least < 0 or most >= classes:
        rule = f"labels must lie in 0 … {classes - 1} (the model has {outputs} outputs)"
        raise CurvescopeError(where, rule, given=least if least < 0 else most)


@torch.no_grad()
def totals(model: nn.Module, X: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """``[sum of losses, right answers]`` on the device, without waiting for it."""
    result = torch.zeros(2, dtype=torch.float64, device=X.device)
    size = max(EVALUATION_BATCH // positions(y), 32)
    for inputs, targets in zip(X.split(size), y.split(size), strict=True):
        output = model(inputs)
        result[0] += loss.mean(output, targets).double() * len(targets)
        result[1] += right_answers(loss, output, targets)
    return result


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
) -> Fit:
    """Mean loss and accuracy of ``model`` in evaluation mode; the model is left as it was.

    Args:
        model: The network.
        data: A pair of tensors ``(X, y)`` or a data set; moved to the model's device.
        loss: As for :class:`curvescope.Problem`.

    Raises:
        CurvescopeError: If data, loss and model do not fit together.

    >>> model = nn.Linear(1, 2).requires_grad_(False)
    >>> _ = model.weight.copy_(torch.tensor([[0.0], [2.0]])), model.bias.zero_()
    >>> evaluate(model, (torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0])))
    Fit(loss=0.126928..., accuracy=1.0)
    """
    where = "evaluate(model, data)"
    measured = as_loss(loss)
    device, dtype = home(where, model)
    X, y = as_tensors(where, data, device, dtype, measured)
    remedy = "leave the weights out, or take Problem(model, data, loss=loss).value()"
    check_even(where, measured, "the mean over the samples", remedy)
    check_fit(where, model, measured, X, y)
    with held(model, "eval"):
        return Fit.of(totals(model, X, y, measured), len(y))


def home(where: str, model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The one device and the one floating-point type of all parameters."""
    parameters = list(model.parameters())
    if not parameters:
        raise CurvescopeError(where, "the model has no parameters")
    kinds = {(p.device, p.dtype) for p in parameters}
    if len(kinds) > 1:
        kinds_here = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds))
        rule = "all parameters must share one device and one dtype"
        raise CurvescopeError(where, rule, given=kinds_here)
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
