"""The trained networks of DH, and how their inputs were scaled.

DH does not say how pixels were scaled, but its first version prints ``‖E[x]E[x]ᵀ‖ / ‖Σ_x‖`` of the
first layer, which depends on the data alone: 25.142 for F-200² on MNIST is that of pixels in
[−1, 1], 5.474 for LeNet5 on CIFAR-10 that of pixels in [0, 1], 0.020 for LeNet5-BN that of pixels
of mean zero (the entry ``input-scaling``).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from curvescope.data import Dataset, dataset
from curvescope.data.normalize import Normalization
from curvescope.problem import Problem
from curvescope.studies.entry import Settings
from curvescope.studies.trained import Subject, trained
from curvescope.training import Recipe

Inputs = Literal["unit", "symmetric", "channel"]
"""Pixels in [0, 1], in [−1, 1], or of mean 0 and standard deviation 1 in each channel."""

MINIATURE = {
    "F-200^2": "F-24^2",
    "T-200^2": "T-24^2",
    "LeNet5": "LeNet5-(conv1-3)-(conv2-5)-(fc1-16)-(fc2-12)",
    "LeNet5-BN": "LeNet5-(conv1-3)-(conv2-5)-(fc1-16)-(fc2-12)-BN",
    "LeNet5-(fc1-80)": "LeNet5-(conv1-3)-(conv2-5)-(fc1-10)-(fc2-12)",
    "LeNet5-(fc1-150)": "LeNet5-(conv1-3)-(conv2-5)-(fc1-20)-(fc2-12)",
}
"""What stands for each network at the smoke scale."""


@dataclass(frozen=True)
class Family:
    """Networks of one kind that differ in their seeds."""

    key: str  # of their weights, see ``trained``
    network: str
    data: str
    inputs: Inputs
    recipe: Recipe
    seeds: int
    init: str = "pytorch"
    start: int = 0  # the first seed; seeds decide the initial weights
    after_pooling: bool = False  # whether batch norms come after the pooling, not before

    def at(self, settings: Settings) -> Family:
        """The same for the scale: fewer seeds and epochs, at the smoke scale a small network."""
        if settings.scale == "smoke":
            return replace(
                self,
                key=f"smoke-{self.key}",
                network=MINIATURE[self.network],
                data="mnist-6k-R" if self.data.endswith("-R") else "mnist-6k",
                recipe=Recipe(seed=0, epochs=5, lr=0.01, momentum=0.9, batch_size=32),
                seeds=min(2, self.seeds),
            )
        if settings.scale == "small":
            recipe = Recipe(seed=0, epochs=3, lr=0.01, momentum=0.9)
            key = f"small-{self.key}"
            return replace(self, key=key, recipe=recipe, seeds=min(2, self.seeds))
        return self


_PLAIN = Recipe(seed=0, epochs=1000, lr=0.01)
"""DH D.3."""
_QUICK = Recipe(seed=0, epochs=150, lr=0.02, momentum=0.9, schedule="linear")
"""Stable up to the curvature 2(1 + β)/lr = 190, as DH's up to 2/lr = 200, and as far in sum."""

PLACE = "dissecting-hessian"
FINISHED = (
    "Networks and eigenpairs that the work folder holds are not computed again: the time above is "
    "that of the rest."
)
MNIST = Family(f"{PLACE}/mnist", "F-200^2", "mnist", "symmetric", _PLAIN, 5)
MNIST_CENTERED = Family("mnist", "F-200^2", "mnist", "channel", _PLAIN, 5)
MNIST_RANDOM = Family(
    f"{PLACE}/mnist-R",
    "F-200^2",
    "mnist-R",
    "symmetric",
    Recipe(seed=0, epochs=300, lr=0.02, momentum=0.9, schedule="linear"),
    5,
)
MNIST_T = Family(
    f"{PLACE}/mnist-T",
    "T-200^2",
    "mnist",
    "unit",
    Recipe(seed=0, epochs=20, lr=0.01, momentum=0.9, batch_size=100),
    1,
    "dziugaite-roy",
)
CIFAR = Family("cifar-10", "LeNet5", "cifar-10", "channel", _PLAIN, 5)
CIFAR_UNIT = Family(f"{PLACE}/lenet5-unit", "LeNet5", "cifar-10", "unit", _PLAIN, 5)
CIFAR_80 = Family(f"{PLACE}/lenet5-fc1-80", "LeNet5-(fc1-80)", "cifar-10", "unit", _PLAIN, 3)
CIFAR_150 = Family(f"{PLACE}/lenet5-fc1-150", "LeNet5-(fc1-150)", "cifar-10", "unit", _PLAIN, 3)
CIFAR_BN = Family(f"{PLACE}/lenet5-bn", "LeNet5-BN", "cifar-10", "channel", _QUICK, 3)
CIFAR_BN_LATE = replace(CIFAR_BN, key=f"{PLACE}/lenet5-bn-after-pooling", after_pooling=True)


def scaled(settings: Settings, name: str, inputs: Inputs) -> Dataset:
    """The training split with inputs of this kind, on the device."""
    seed = settings.seed if name.endswith("-R") else None
    kind: Literal["channel", "none"] = "channel" if inputs == "channel" else "none"
    data = dataset(name, root=settings.root, normalize=kind, seed=seed, device=settings.device)
    if inputs == "symmetric":
        half = torch.full((1, 1, 1), 0.5, dtype=torch.float64)
        normalization = Normalization("channel", half, half)
        data = replace(data, X=normalization.apply_(data.X), normalization=normalization)
    return data


@dataclass(frozen=True)
class Group:
    """The networks of a family and the data that their curvature is taken over."""

    family: Family
    data: Dataset
    subjects: tuple[Subject, ...]

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """The trained networks."""
        return tuple(subject.model for subject in self.subjects)

    def starts(self) -> tuple[nn.Module, ...]:
        """The networks before training."""
        return tuple(subject.at_start() for subject in self.subjects)

    def problem(self, model: nn.Module) -> Problem:
        """A network's problem on this data."""
        return Problem(model, self.data.batches(5000))


def group(settings: Settings, family: Family) -> Group:
    """A family's networks, trained if need be, with the samples of this scale.

    Training takes all samples (at the smoke scale the first 1000), the curvature takes 300, 2000 or
    all.
    """
    data = scaled(settings, family.at(settings).data, family.inputs)
    size = settings.pick(smoke=1000, small=len(data), paper=len(data))
    few = settings.pick(smoke=300, small=2000, paper=size)
    return gather(settings, family.at(settings), first(data, size), few)


def gather(settings: Settings, family: Family, data: Dataset, few: int) -> Group:
    """The networks of a family as it stands, trained on ``data``; curvature over the first few."""
    (settings.work / family.key).parent.mkdir(parents=True, exist_ok=True)
    subjects = trained(
        settings,
        family.key,
        family.network,
        data,
        family.recipe,
        seeds=range(family.start, family.start + family.seeds),
        init=family.init,
        arrange=norms_after_pooling if family.after_pooling else None,
    )
    return Group(family, first(data, few), subjects)


def norms_after_pooling(model: nn.Module) -> nn.Module:
    """``conv, ReLU, pool, batch norm`` instead of ``conv, ReLU, batch norm, pool``.

    >>> layers = OrderedDict({"conv1": nn.Conv2d(1, 1, 1), "bn-1": nn.BatchNorm2d(1)})
    >>> layers["maxpool1"] = nn.MaxPool2d(2)
    >>> list(dict(norms_after_pooling(nn.Sequential(layers)).named_children()))
    ['conv1', 'maxpool1', 'bn-1']
    """
    layers = list(model.named_children())
    for place, (name, _) in enumerate(layers):
        if name.startswith("maxpool") and layers[place - 1][0].startswith("bn-"):
            layers[place - 1], layers[place] = layers[place], layers[place - 1]
    return nn.Sequential(OrderedDict(layers))


def first(data: Dataset, samples: int) -> Dataset:
    """The first samples of a data set."""
    return data if samples >= len(data) else replace(data, X=data.X[:samples], y=data.y[:samples])
