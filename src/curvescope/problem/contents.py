"""The model, loss and data of a problem, checked for changes and digested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from curvescope import _state
from curvescope.errors import CurvescopeError
from curvescope.identity import Settings, Snapshot
from curvescope.problem.batches import Batches
from curvescope.problem.losses import Loss


class Contents:
    """A snapshot of the weights, buffers and loss numbers that a problem was built with.

    ``settings`` are those of the modules and of the loss, taken at the first check. A digest is
    computed when it is first needed.
    """

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        self._model = model
        self._snapshot = Snapshot(model_tensors(model))
        self._loss_tensors = _other_tensors(loss, model)
        self._loss_snapshot = Snapshot(self._loss_tensors)
        self.settings: Settings | None = None
        self._digests: dict[str, Any] = {}  # of the model, and of the data in both forms

    def check_unchanged(self, loss: Loss | None, data: Batches) -> None:
        """Refuse weights, buffers, settings, loss numbers or data that were changed."""
        with _state.exclusive(self._model):  # another thread's evaluation puts other buffers in
            same = self._snapshot.matches(model_tensors(self._model))
            if self.settings is None:
                self.settings = Settings(_parts(self._model, loss))
            changed = self.settings.difference()
        if not same:
            rule = "the model's weights have changed since the problem was built"
            raise CurvescopeError("Problem", rule, remedy="build a new Problem for the new weights")
        if not self._loss_snapshot.matches(self._loss_tensors):
            rule = "the numbers that the loss refers to have changed since the problem was built"
            remedy = "build a new Problem for the new loss"
            raise CurvescopeError("Problem", rule, remedy=remedy)
        if changed is not None:
            rule = f"{changed} has changed since the problem was first used"
            raise CurvescopeError("Problem", rule, remedy="build a new Problem for what is there")
        if not data.unwritten():
            rule = "the data have changed since the problem was built"
            raise CurvescopeError("Problem", rule, remedy="build a new Problem for the new data")

    def data_digest(self, data: Batches, *, in_order: bool) -> str:
        """The digest of the data: as batches in their order, or as samples in any order."""
        if "data" not in self._digests:
            self._digests["data"] = data.digests()
        digests: tuple[str, str] = self._digests["data"]
        return digests[in_order]

    def model_digest(self, compute: Callable[[], str]) -> str:
        """The digest of the model, computed once."""
        if "model" not in self._digests:
            self._digests["model"] = compute()
        of_model: str = self._digests["model"]
        return of_model


def _parts(model: nn.Module, loss: Loss | None) -> list[object]:
    """All modules of the model, and the loss with the modules that it refers to."""
    modules: list[object] = list(model.modules())
    if loss is None:
        return modules
    parts = [part for part in vars(loss).values() if isinstance(part, nn.Module)]
    return [*modules, *(module for part in parts for module in part.modules()), loss]


def model_tensors(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers of a model; faster than ``model.parameters()``."""
    tensors: list[Tensor | None] = []
    modules = [model]
    while modules:
        module = modules.pop()
        tensors += module._parameters.values()
        tensors += module._buffers.values()
        modules += [each for each in module._modules.values() if each is not None]
    return [tensor for tensor in tensors if tensor is not None]


def _other_tensors(loss: Loss | None, model: nn.Module) -> list[Tensor]:
    """The tensors of a loss that are not the model's."""
    of_model = {id(t) for t in model_tensors(model)}
    return [] if loss is None else [t for t in loss.tensors() if id(t) not in of_model]
