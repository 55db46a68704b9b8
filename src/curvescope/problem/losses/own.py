"""The loss that a model computes itself, as those of Hugging Face do when they are given labels.

Which of our losses that is, is found by comparing numbers: on the first batch one candidate must
agree with the model's own to rounding. It decides what no shape does, such as whether labels are
shifted.
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
"""The name that stands for the model's own loss, whichever it is."""

_ROUNDING = 200.0  # in units of the last place
_CLOSE = 100.0  # times that: numbers that a coincidence may have brought together


def takes_labels(model: nn.Module) -> bool:
    """Whether the forward may take ``labels``, as those of Hugging Face and their wrappers do."""
    parameters = inspect.signature(model.forward).parameters
    return "labels" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def to_compare(loss: Any, known: Loss | None) -> str | Loss | None:
    """What must agree with a model's own loss: a name, or torch's loss without settings."""
    if isinstance(loss, str):
        return loss
    plain = known is not None and not isinstance(loss, Loss) and known.name in BY_NAME
    return known if plain else None


def own_loss(model: nn.Module, given: str | Loss, output: Tensor, target: Any, result: Any) -> Loss:
    """Our loss that is the model's own, from what it returned for the first batch and its labels.

    Args:
        model: the model, whose class says what its labels mean where the numbers do not.
        given: the loss that the user named, or ``"model"``; or one of torch's, without settings.
        output: the model's output as a problem sees it.
        target: the labels.
        result: what the model returned when it was given the labels.

    Raises:
        CurvescopeError: if no candidate agrees, or several do.

    >>> z, y = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[0, 1, 1]])
    >>> shifted = nn.functional.cross_entropy(z[0, :2], y[0, 1:])
    >>> own_loss(nn.Identity(), "cross_entropy", z, y, {"loss": shifted}).name
    'cross_entropy(shift=1)'
    """
    name = given if isinstance(given, str) else given.name
    own = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if not isinstance(own, Tensor) or own.numel() != 1:
        if given != MODEL:
            return as_loss(given)
        rule = "the model returns no loss of its own when it is given labels"
        raise CurvescopeError("Problem(loss='model')", rule, remedy="name the loss")
    own = own.detach()
    eps = max(torch.finfo(own.dtype).eps, torch.finfo(output.dtype).eps)
    slack = _ROUNDING * eps * max(1.0, abs(float(own)))
    apart = {loss: abs(value - float(own)) for loss, value in _values(given, output, target)}
    agree = [loss for loss, gap in apart.items() if gap <= slack]
    close = [loss for loss, gap in apart.items() if gap <= _CLOSE * slack]
    if len(agree) == 1 and len(close) == 1:
        return agree[0]
    known = _shift(model)
    named = [loss for loss in agree if isinstance(loss, CrossEntropy) and loss.shift == known]
    if len(named) == 1:
        return named[0]
    what = "several losses give" if agree else "no loss that the library knows gives"
    rule = f"the model's own loss is {float(own):.6g} on the first batch, and {what} that number"
    remedy = (
        "say which is meant with a loss object, such as cs.losses.CrossEntropy(axis=-1, shift=1)"
    )
    raise CurvescopeError(f"Problem(loss={name!r})", rule, remedy=remedy)


def _values(given: str | Loss, output: Tensor, target: Any) -> Iterator[tuple[Loss, float]]:
    """The mean over the batch by every candidate that takes such an output and target."""
    for loss in _candidates(given, output, target):
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
    """Whether the labels are those of the next position, by the class of a Hugging Face model."""
    kind = type(getattr(model, "_orig_mod", model)).__name__  # compiled ones hold the original
    if any(word in kind for word in ("CausalLM", "LMHead", "DoubleHeads")):
        return 1
    return 0 if any(word in kind for word in ("MaskedLM", "Classification")) else None


def refuse_copied_labels(loss: Loss, inputs: Any, target: Any) -> None:
    """Refuse labels that are the model's own inputs where nobody said whether to shift them.

    A causal language model is given its tokens as labels and compares each output with the next
    one. It says so by its own loss; a module around it that returns the logits alone does not.
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
