"""One run: a learner, its finished epochs, and its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _random
from curvescope._state import held
from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.networks.spec import NetworkSpec
from curvescope.problem.losses import Loss
from curvescope.training.folder import RunFolder, State
from curvescope.training.learner import Learner
from curvescope.training.objective import Fit, Penalty, refresh_batch_norm, totals
from curvescope.training.recipe import Recipe
from curvescope.training.records import DataNote, Epoch, Result, Training
from curvescope.training.watch import Options, Watch, split


@dataclass(frozen=True)
class Trained:
    """How a training ended; the weights are in the model (and in ``folder``, where there is one).

    ``train`` and ``test`` belong to the final weights in evaluation mode: the average of weights
    where the recipe asks for one. ``diverged`` is the epoch in which the loss ceased to be finite;
    there are no final weights then, and ``train`` and ``test`` are ``None``.
    """

    recipe: Recipe
    history: tuple[Epoch, ...]
    train: Fit | None
    test: Fit | None
    diverged: int | None
    folder: Path | None

    @property
    def seconds(self) -> float:
        """The time of all epochs, those before an interruption included."""
        return sum(epoch.seconds for epoch in self.history)


@dataclass(frozen=True)
class Plan:
    """The random draws of one epoch."""

    order: Tensor  # [N]
    seed: int  # for models that draw random numbers themselves
    generator: Tensor  # the generator's state after drawing all this


class Run:
    """The state of one training between epochs."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        samples: int,
        folder: RunFolder | None,
        loss: Loss,
        penalty: Penalty | None,
        monitor: Options | None = None,
    ) -> None:
        self._options = monitor
        self._watch: Watch | None = None
        self.model, self.recipe, self.folder = model, recipe, folder
        self.samples, self.loss, self.penalty = samples, loss, penalty
        self.epoch = 0
        self.diverged: int | None = None
        self.history: list[Epoch] = []
        self._generator = _random.child(torch.Generator().manual_seed(recipe.seed))
        self._snapshot: State | None = None

    # The beginning and the end ------------------------------------------------------------

    def start(self, data: tuple[Tensor, Tensor]) -> None:
        """Take hold of the model; with a folder, go on from its state."""
        state: State | None = None
        if self.folder is not None:
            self.folder.begin(self.model)
            state, self.history = self.folder.load()
        self.learner = Learner(self.model, self.recipe, self.penalty, loss=self.loss)
        if self.folder is not None and state is not None:
            self._restore(state, self.folder)
        if self._options is not None:
            self._watch_over(self._options, data, state)

    def _watch_over(
        self, options: Options, data: tuple[Tensor, Tensor], state: State | None
    ) -> None:
        """Make the monitor: a new one at the beginning, later the one of the saved state."""
        if state is not None and state.monitor is None:
            rule = f"the run was not watched up to epoch {state.epoch}, where it goes on"
            remedy = "go on without a monitor, or start in another folder"
            raise CurvescopeError("train(monitor)", rule, remedy=remedy)
        folder = None if self.folder is None else self.folder.path
        watch = Watch(
            options, self.model, self.learner.optimizer, self.loss, data,
            seed=self.recipe.seed, batch_size=self.recipe.batch_size, folder=folder,
            resumed=state is not None,
        )  # fmt: skip
        if state is not None and state.monitor is not None:
            watch.restore(split(state.tensors)[1], state.monitor)
        self._watch, self.learner.monitor = watch, watch.monitor

    def conclude(self, X: Tensor, y: Tensor, test: tuple[Tensor, Tensor] | None) -> Trained:
        """Put the average in place, measure the final weights, and write the result."""
        fits: list[Fit | None] = [None, None]
        if self.diverged is None:
            if self.learner.average is not None:
                self.learner.average.put()
                refresh_batch_norm(self.model, X, self.recipe.batch_size)
            with held(self.model, "eval"):
                for i, data in enumerate(((X, y), test)):
                    if data is not None:
                        fits[i] = Fit.of(totals(self.model, *data, self.loss), len(data[1]))
        trained = Trained(
            self.recipe,
            tuple(self.history),
            fits[0],
            fits[1],
            self.diverged,
            self.folder.path if self.folder else None,
        )
        if self.folder is not None:
            if self.diverged is None:
                self._keep("final", {"averaged": self.learner.average is not None})
            self.folder.finish(Result(fits[0], fits[1], self.diverged))
        return trained

    # Epochs --------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Draw the order of the samples, and a seed."""
        order = torch.randperm(self.samples, generator=self._generator)
        seed = int(torch.randint(2**62, (), generator=self._generator))
        return Plan(order, seed, self._generator.get_state())

    def finish_epoch(self, plan: Plan, train: Fit, test: Fit | None, seconds: float) -> None:
        """Average, log, keep and save what is due after an epoch."""
        if self.diverged is not None:
            return
        self.epoch += 1
        if not isfinite(train.loss):
            self.diverged = self.epoch
            return
        if self.learner.average is not None and self.recipe.averages(self.epoch):
            self.learner.average.add()
        done = Epoch(
            epoch=self.epoch,
            lr=self.recipe.rate(self.epoch),
            loss=train.loss,
            accuracy=train.accuracy,
            test_loss=test.loss if test else None,
            test_accuracy=test.accuracy if test else None,
            seconds=seconds,
        )
        self.history.append(done)
        if self.folder is not None:
            self.folder.log(done)
            if self.epoch in self.recipe.checkpoints:
                self._keep(f"epoch-{self.epoch:05d}", {})
            self._snapshot = self._state(plan.generator)
            if self.folder.due():
                self.folder.save(self._snapshot)

    def _keep(self, name: str, notes: dict[str, Any]) -> None:
        """Keep the weights, and before them Adam's averages there."""
        assert self.folder is not None, "asked by the callers"
        if (moments := self.learner.moments(self.epoch)) is not None:
            self.folder.keep_moments(name, moments)
        self.folder.keep(name, self.model, {"epoch": self.epoch, **notes})

    def save(self) -> None:
        """Save the state after the last complete epoch."""
        if self.folder is not None and self._snapshot is not None and self.diverged is None:
            self.folder.save(self._snapshot)

    # State ---------------------------------------------------------------------------------

    def _state(self, generator: Tensor) -> State:
        tensors = {name: tensor.clone() for name, tensor in self.learner.tensors().items()}
        watched, rest = ({}, None) if self._watch is None else self._watch.state()
        return State(self.epoch, {**tensors, **watched, "generator": generator}, rest)

    def _restore(self, state: State, folder: RunFolder) -> None:
        tensors = {**self.learner.tensors(), "generator": self._generator.get_state()}
        if _forms(tensors) != _forms(split(state.tensors)[0]):
            damage = "state.safetensors does not fit the network (or this version of curvescope)"
            folder.refuse(damage)
        for name, tensor in tensors.items():
            tensor.copy_(state.tensors[name])
        self._generator.set_state(tensors["generator"])
        self.epoch = state.epoch


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def finished(model: nn.Module, recipe: Recipe, folder: RunFolder) -> Trained:
    """The result of a finished run; its final weights are put into the model."""
    end, history = folder.end(model)
    return Trained(recipe, history, end.train, end.test, end.diverged, folder.path)


def describe(data: Any, tensors: Sequence[Tensor]) -> DataNote:
    """A data set by its name, the options it was loaded with, shapes and contents."""
    name, options = getattr(data, "name", None), getattr(data, "options", None)
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    return DataNote(name, options, shapes, digest(*tensors))


def configuration(
    model: nn.Module,
    recipe: Recipe,
    data: DataNote,
    penalty: Penalty | None,
    loss: Loss | None = None,
) -> Training:
    """The configuration of a run; two runs with the same one may share a folder.

    Args:
        model: The network.
        recipe: How it is trained.
        data: Its training data.
        penalty: A term of the loss.
        loss: A loss in place of the recipe's.
    """
    spec = getattr(model, "spec", None)
    state: Mapping[str, Tensor] = model.state_dict()
    return Training(
        network=spec if isinstance(spec, NetworkSpec) else None,
        architecture={name: tuple(tensor.shape) for name, tensor in state.items()},
        model=digest(model),
        frozen=_frozen(model),
        initial_weights=digest(*state.values()),
        recipe=recipe,
        loss=None if loss is None else f"{loss.name} {loss.identity}",
        penalty=None if penalty is None else _name(penalty),
        data=data,
    )


def _frozen(model: nn.Module) -> tuple[str, ...]:
    """The parameters that are not trained, and the parts that stay in evaluation mode."""
    parameters = [name for name, p in model.named_parameters() if not p.requires_grad]
    parts = [name for name, m in model.named_modules() if model.training and not m.training]
    return (*parameters, *parts)


def _name(penalty: Penalty) -> str:
    """The ``repr`` of a penalty if its class defines one, else its digest."""
    silent: tuple[object, ...] = (object.__repr__, nn.Module.__repr__)
    if isinstance(penalty, FunctionType | MethodType) or type(penalty).__repr__ in silent:
        name = getattr(penalty, "__qualname__", type(penalty).__qualname__)
        return f"{name} {digest(penalty)}"
    return repr(penalty)


def refuse_lonely_samples(where: str, model: nn.Module, samples: int, batch_size: int) -> None:
    """Refuse a last batch of one sample for models with batch norms: it has no variance."""
    trained = [m for m in model.modules() if m.training or not model.training]
    has_norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in trained)
    if has_norms and (samples - 1) % batch_size == 0:
        rule = (
            f"{samples} samples in batches of {batch_size} leave one sample alone, which a batch "
            "norm cannot train on"
        )
        raise CurvescopeError(where, rule, remedy="choose another `batch_size`")
