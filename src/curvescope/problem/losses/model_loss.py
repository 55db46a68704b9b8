"""Recognizing the loss that a model computes from ``labels``, as those of Hugging Face do.

Every candidate loss is evaluated on the first batch; the one whose value agrees with the model's to
rounding is taken. The value decides what shapes cannot, such as whether labels are shifted.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from curvescope.errors import CurvescopeError
from curvescope.problem.losses.base import Loss
from curvescope.problem.losses.binary import BinaryLogistic
from curvescope.problem.losses.cross_entropy import CrossEntropy
from curvescope.problem.losses.recognize import BY_NAME, as_loss
from curvescope.problem.losses.squared import MeanSquare

MODEL = "model"
"""The name by which users request the loss that the model computes."""

_ROUNDING = 200.0  # units of the last place within which two values agree
_CLOSE = 100.0  # times that: a second candidate this close makes the agreement ambiguous


def takes_labels(model: nn.Module) -> bool:
    """Whether ``forward`` has an argument ``labels``, or takes any keyword."""
    parameters = inspect.signature(model.forward).parameters
    return "labels" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def to_compare(loss: Any, recognized: Loss | None) -> str | Loss | None:
    """The name or setting-free torch loss to compare with the model's loss, else None."""
    if isinstance(loss, str):
        return loss
    plain = recognized is not None and not isinstance(loss, Loss) and recognized.name in BY_NAME
    return recognized if plain else None


def recognize_model_loss(
    model: nn.Module, requested: str | Loss, output: Tensor, target: Any, result: Any
) -> Loss:
    """The :class:`Loss` that gives the value a model returned for the first batch and its labels.

    Args:
        model: the model; its class name decides about shifted labels where values do not.
        requested: the name that the user passed (or ``"model"``), or a torch loss without settings.
        output: the model's output as a problem sees it.
        target: the labels.
        result: the value returned by ``model(…, labels=target)``.

    Raises:
        CurvescopeError: if no candidate agrees, or several do.

    >>> z, y = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[0, 1, 1]])
    >>> shifted = nn.functional.cross_entropy(z[0, :2], y[0, 1:])
    >>> recognize_model_loss(nn.Identity(), "cross_entropy", z, y, {"loss": shifted}).name
    'cross_entropy(shift=1)'
    """
    name = requested if isinstance(requested, str) else requested.name
    value = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if not isinstance(value, Tensor) or value.numel() != 1:
        if requested != MODEL:
            return as_loss(requested)
        rule = "the model returns no loss of its own when it is given labels"
        raise CurvescopeError("Problem(loss='model')", rule, remedy="name the loss")
    value = value.detach()
    eps = max(torch.finfo(value.dtype).eps, torch.finfo(output.dtype).eps)
    slack = _ROUNDING * eps * max(1.0, abs(float(value)))
    values = _values(requested, output, target)
    gaps = {loss: abs(candidate - float(value)) for loss, candidate in values}
    agree = [loss for loss, gap in gaps.items() if gap <= slack]
    close = [loss for loss, gap in gaps.items() if gap <= _CLOSE * slack]
    if len(agree) == 1 and len(close) == 1:
        return agree[0]
    shift = _shift(model)
    named = [loss for loss in agree if isinstance(loss, CrossEntropy) and loss.shift == shift]
    if len(named) == 1:
        return named[0]
    what = "several losses give" if agree else "no loss that the library knows gives"
    rule = f"the model's own loss is {float(value):.6g} on the first batch, and {what} that number"
    remedy = (
        "say which is meant with a loss object, such as cs.losses.CrossEntropy(axis=-1, shift=1)"
    )
    raise CurvescopeError(f"Problem(loss={name!r})", rule, remedy=remedy)


def _values(requested: str | Loss, output: Tensor, target: Any) -> Iterator[tuple[Loss, float]]:
    """The mean over the batch by every candidate that takes such an output and target."""
    for loss in _candidates(requested, output, target):
        try:
            at = loss.at(output, target)
        except CurvescopeError:
            continue
        if at.weight:
            yield loss, float(at.value().double() / at.weight)


def _candidates(name: str | Loss, output: Tensor, target: Any) -> list[Loss]:
    if isinstance(name, Loss):
        return [name]
    entropies: list[Loss] = [CrossEntropy()]
    if output.ndim > 2:
        entropies = [CrossEntropy(axis=-1, shift=1), CrossEntropy(axis=-1), CrossEntropy(axis=1)]
        if isinstance(target, Tensor) and bool((target == 255).any()):  # segmentation's
            entropies.append(CrossEntropy(axis=1, ignore_index=255))
    if name == MODEL:
        return [*entropies, MeanSquare(column=True), BinaryLogistic()]
    if name == "cross_entropy":
        return entropies
    return [MeanSquare(column=True) if name == "mse" else as_loss(name)]


def _shift(model: nn.Module) -> int | None:
    """1 or 0, whether the class name of a Hugging Face model means shifted labels; else None."""
    kind = type(getattr(model, "_orig_mod", model)).__name__  # compiled ones hold the original
    if any(word in kind for word in ("CausalLM", "LMHead", "DoubleHeads")):
        return 1
    return 0 if any(word in kind for word in ("MaskedLM", "Classification")) else None


def refuse_copied_labels(loss: Loss, inputs: Any, target: Any) -> None:
    """Refuse labels equal to the inputs unless the loss states whether to shift them.

    A causal language model takes its tokens as labels and compares each output with the next one.
    The loss it returns shows this; a wrapper that returns only the logits does not.
    """
    if not isinstance(loss, CrossEntropy) or loss.axis is not None:
        return
    if not isinstance(target, Tensor) or target.ndim != 2 or target.is_floating_point():
        return
    counted = target != loss.ignore_index
    for x in pytree.tree_leaves(inputs):
        same = isinstance(x, Tensor) and x.shape == target.shape and not x.is_floating_point()
        if same and bool(counted.any()) and bool((x == target)[counted].all()):
            rule = "the labels are the model's inputs themselves, and the model computes no loss"
            remedy = (
                "say `loss=cs.losses.CrossEntropy(axis=-1, shift=1)` to predict the next token, "
                "`loss=cs.losses.CrossEntropy(axis=-1)` for the same one"
            )
            raise CurvescopeError("Problem(loss)", rule, remedy=remedy)
