"""Which loss a name, a torch module or function, or any other callable stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from torch import Tensor, nn

from curvescope._checks import one_of
from curvescope.errors import CurvescopeError
from curvescope.problem.losses.base import Loss
from curvescope.problem.losses.binary import BinaryLogistic
from curvescope.problem.losses.cross_entropy import CrossEntropy
from curvescope.problem.losses.custom import Custom
from curvescope.problem.losses.robust import Huber, SmoothL1
from curvescope.problem.losses.squared import MeanSquare

FAMILIES: tuple[type[Loss], ...] = (CrossEntropy, BinaryLogistic, MeanSquare, Huber, SmoothL1)
"""The losses with a counterpart in torch."""

BY_NAME: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy,
    "binary_logistic": BinaryLogistic,
    "mse": MeanSquare,
    "huber": Huber,
    "smooth_l1": SmoothL1,
}

_OLD = ("size_average", "reduce")  # torch's own former words for ``reduction``


def as_loss(loss: str | nn.Module | Callable[..., Tensor] | Loss) -> Loss:
    """The loss that a name, a torch loss module or function, or a callable stands for.

    >>> from torch.nn import functional as F
    >>> as_loss(partial(F.cross_entropy, label_smoothing=0.1)).name
    'cross_entropy(label_smoothing=0.1)'
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        one_of("Problem(loss)", "loss", loss, BY_NAME)
        return _named(loss)
    for family in FAMILIES:
        settings = _settings(family, loss)
        if settings is not None:
            return _made(family, loss, settings)
    if not callable(loss):
        rule = "needs a name or a callable of (output, target)"
        raise CurvescopeError("Problem(loss)", rule, given=repr(loss))
    _need_mean(getattr(loss, "reduction", "mean"))
    if isinstance(loss, partial):
        _need_mean(loss.keywords.get("reduction", "mean"))
    return Custom(loss)


def classifier_loss(output: Tensor) -> Loss:
    """The loss of a classifier by its logits: ``[B]`` or ``[B, 1]`` are two classes.

    >>> import torch
    >>> classifier_loss(torch.zeros(5, 1)).name, classifier_loss(torch.zeros(5, 3)).name
    ('binary_logistic', 'cross_entropy')
    """
    single = output.ndim == 1 or output.shape[1] == 1
    return _named("binary_logistic" if single else "cross_entropy")


@cache
def _named(name: str) -> Loss:
    return BY_NAME[name]()


def _settings(family: type[Loss], loss: Any) -> dict[str, Any] | None:
    """The settings of a torch module, function or ``partial`` of this family."""
    for module in family.modules:
        # A subclass with a forward of its own is another loss.
        if isinstance(loss, module) and type(loss).forward is module.forward:
            names = inspect.signature(module.__init__).parameters
            return {n: getattr(loss, n) for n in names if hasattr(loss, n)}
    if isinstance(loss, partial):
        inner = _settings(family, loss.func)
        if inner is None:
            return None
        if loss.args:
            rule = "settings of a torch function must be given by keyword"
            raise CurvescopeError("Problem(loss)", rule, given=f"{len(loss.args)} by position")
        return inner | loss.keywords
    return {} if any(loss is function for function in family.functions) else None


def _made(family: type[Loss], loss: Any, settings: dict[str, Any]) -> Loss:
    _need_mean(settings.pop("reduction", "mean"))
    settings = {name: value for name, value in settings.items() if value is not None}
    if any(name in settings for name in _OLD):
        _need_mean(", ".join(f"{n}={settings[n]}" for n in _OLD if n in settings))
    if _function(loss) in (nn.functional.l1_loss, nn.L1Loss):
        settings["beta"] = 0.0
    try:
        return family.from_torch(**settings)
    except TypeError:
        arguments = inspect.signature(family.__init__).parameters
        other = ", ".join(sorted(set(settings) - set(arguments)))
        rule = f"{family.__name__} does not know the setting {other}"
        raise CurvescopeError("Problem(loss)", rule) from None


def _function(loss: Any) -> Any:
    while isinstance(loss, partial):
        loss = loss.func
    return type(loss) if isinstance(loss, nn.Module) else loss


def _need_mean(reduction: Any) -> None:
    if reduction != "mean":
        rule = "the loss must be a mean"
        raise CurvescopeError(
            "Problem(loss)", rule, given=f"reduction={reduction!r}", remedy="use 'mean'"
        )
