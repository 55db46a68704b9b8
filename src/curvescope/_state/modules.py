"""Modules in training or evaluation mode for a while, each put back to what it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from curvescope._state.guards import claimed, exclusive
from curvescope._state.switches import refuse_inference_mode
from curvescope._state.undo import undone

Mode = Literal["eval", "norms train", "norms as they are", "train"]
Model = TypeVar("Model", bound=nn.Module)


@contextmanager
def held(model: nn.Module, mode: Mode) -> Iterator[None]:
    """The model for this thread alone, its modules in a mode; each flag is put back afterwards.

    ``nn.Module.train`` and ``.eval`` go through all modules, so that what a caller had set for one
    of them (a batch norm frozen by ``eval()``, say) would be lost.

    Args:
        model: Any module.
        mode: ``"eval"``; ``"norms train"``, where normalizations use the statistics of the batch
            and everything else is in evaluation mode; ``"norms as they are"``, where they keep
            their own mode; or ``"train"``: all modules of a model in evaluation mode, while one in
            training mode stays as it is, with the parts that its owner froze.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1).eval())
    >>> with held(model, "eval"):
    ...     print([module.training for module in model.modules()])
    [False, False, False]
    >>> [module.training for module in model.modules()]
    [True, True, False]
    """
    modules = list(model.modules())
    with exclusive(model, modules):
        before = [module.training for module in modules]
        with undone(lambda: _set(modules, before)):
            _set(modules, _flags(modules, before, mode))
            yield


@contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """The model in mode ``"train"`` of :func:`held`, other threads being refused meanwhile.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1).eval())
    >>> with in_training(model):
    ...     print([module.training for module in model.modules()])
    [True, True, False]
    """
    refuse_inference_mode("train")
    modules = list(model.modules())
    with claimed(model):
        before = [module.training for module in modules]
        with undone(lambda: _set(modules, before)):
            _set(modules, _flags(modules, before, "train"))
            yield


def _flags(modules: list[nn.Module], before: list[bool], mode: Mode) -> list[bool]:
    if mode == "eval":
        return [False] * len(modules)
    if mode == "train":
        return before if before[0] else [True] * len(modules)
    norms = [isinstance(module, _NormBase) for module in modules]
    if mode == "norms train":
        return norms
    return [norm and training for norm, training in zip(norms, before, strict=True)]


def _set(modules: list[nn.Module], flags: list[bool]) -> None:
    for module, training in zip(modules, flags, strict=True):
        if module.training is training:
            continue
        if "training" in module.__dict__:  # past nn.Module.__setattr__, a hundred times slower
            module.__dict__["training"] = training
        else:
            module.training = training


def copied(model: Model) -> Model:
    """A copy of a model, taken while no other thread has its own tensors in it."""
    with exclusive(model):
        return copy.deepcopy(model)


def evaluated(model: Model) -> Model:
    """The model itself, in evaluation mode from now on: for one that was made here, or copied."""
    return model.eval()
