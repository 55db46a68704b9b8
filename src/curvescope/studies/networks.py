"""Trained networks of studies: described in TOML, trained once, recognized by their parts.

A description says which network on which images, and how it is trained; whatever a scale changes
stands in a table with the scale's name below it::

    [networks.lenet5]
    network = "LeNet5"
    data = "cifar-10"
    pixels = "unit"
    seeds = 5
    recipe = { epochs = 1000, lr = 0.01 }

    [networks.lenet5.smoke]
    network = "LeNet5-(fc1-20)"
    data = "mnist-6k"
    samples = 1000
    recipe = { epochs = 5, momentum = 0.9 }
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from curvescope import io
from curvescope._checks import one_of
from curvescope._state import copied, evaluated, fast_precision
from curvescope.data import Dataset, dataset
from curvescope.data.normalize import Normalization
from curvescope.errors import CurvescopeError
from curvescope.identity import digest, file_digest
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.studies.study import SCALES, Scale
from curvescope.studies.trainings import Workers
from curvescope.training import Recipe, train_many

Pixels = Literal["unit", "symmetric", "channel"]
_PIXELS = ("unit", "symmetric", "channel")
_FILE = "file"  # the checksum of the weights' file


@dataclass(frozen=True)
class Images:
    """Which images of a data set, and how their pixels are scaled.

    Args:
        data: The data set.
        pixels: ``"unit"``: in [0, 1]; ``"symmetric"``: in [−1, 1]; ``"channel"``: of mean zero and
            variance one in each channel over the training split.
        split: ``"train"`` or ``"test"``.
        samples: So many, the first ones; all by default.
        per_class: So many of each class, the first ones.
        last: So many from the end instead.
        shuffled: Whether ``samples`` are drawn at random, by the seed of the run, instead of being
            the first ones; ``skip`` of these are left out, so that two parts do not meet.
        skip: See ``shuffled``.
        coarse: Squares of so many pixels on a side are replaced by their means.
    """

    data: str
    pixels: Pixels = "unit"
    split: str = "train"
    samples: int | None = None
    per_class: int | None = None
    last: int | None = None
    shuffled: bool = False
    skip: int = 0
    coarse: int = 1

    def load(self, *, root: Path | None, seed: int, device: str) -> Dataset:
        """The images, on the device."""
        one_of("Images", "pixels", self.pixels, _PIXELS)
        kind: Literal["channel", "none"] = "channel" if self.pixels == "channel" else "none"
        labels = seed if self.data.endswith("-R") else None
        images = dataset(
            self.data, root=root, split=self.split, per_class=self.per_class, seed=labels,
            normalize=kind,
        )  # fmt: skip
        if self.pixels == "symmetric":
            half = torch.full((1, 1, 1), 0.5, dtype=torch.float64)
            scaling = Normalization("channel", half, half)
            images = replace(images, X=scaling.apply_(images.X), normalization=scaling)
        rows = self._rows(len(images), seed)
        if rows is not None:
            images = replace(images, X=images.X[rows], y=images.y[rows])
        if self.coarse > 1:
            images = replace(images, X=avg_pool2d(images.X, self.coarse))
        return images.to(device)

    def _rows(self, total: int, seed: int) -> Tensor | slice | None:
        if self.last is not None:
            return slice(total - self.last, total)
        if not self.shuffled:
            return None if self.samples is None or self.samples >= total else slice(0, self.samples)
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        stop = None if self.samples is None else self.skip + self.samples
        return order[self.skip : stop]


@dataclass(frozen=True)
class Description:
    """Networks of one kind that differ in their seeds: what a table below ``networks`` says.

    ``samples``, ``per_class``, ``shuffled`` and ``coarse`` choose the training images, ``held_out``
    those that it is tested on (keys of :class:`Images`), ``curvature`` the first so many training
    images over which curvature is taken (``curvature_per_class``: of each class).
    """

    network: str
    images: Images
    recipe: Recipe
    held_out: Images | None = None
    curvature: int | None = None
    curvature_per_class: int | None = None
    seeds: int = 1
    start: int = 0  # the first seed, beside that of the run; seeds decide the initial weights
    init: str = "pytorch"
    outputs: int | None = None  # the number of classes by default
    norms: str = "before pooling"  # or "after pooling": where batch norms stand
    fast: bool = False  # TF32 on a GPU, as papers of that time trained

    def seeds_from(self, first: int) -> range:
        """The seeds of the networks in a run with the seed ``first``."""
        return range(first + self.start, first + self.start + self.seeds)

    @classmethod
    def of(cls, where: str, table: Mapping[str, Any], scale: Scale) -> Description:
        """From a table of a study's file, with what its scale changes.

        >>> table = {"network": "LeNet5", "data": "mnist", "recipe": {"epochs": 9}, "seeds": 5,
        ...          "smoke": {"data": "mnist-6k", "recipe": {"epochs": 2}}}
        >>> Description.of("here", table, "smoke").recipe.epochs
        2
        """
        given = {key: value for key, value in table.items() if key not in SCALES}
        for key, value in table.get(scale, {}).items():
            both = isinstance(value, dict) and isinstance(given.get(key), dict)
            given[key] = {**given[key], **value} if both else value
        names = {each.name for each in fields(Images)}
        chosen = {key: given.pop(key) for key in list(given) if key in names}
        images = _made(where, Images, chosen)
        if "held_out" in given:
            same = {"data": images.data, "pixels": images.pixels, "coarse": images.coarse}
            given["held_out"] = _made(where, Images, {**same, **given["held_out"]})
        recipe: dict[str, Any] = {"seed": 0, **given.pop("recipe", {})}
        recipe["checkpoints"] = tuple(recipe.get("checkpoints", ()))
        try:
            plan = Recipe(**recipe)
        except TypeError as error:
            raise CurvescopeError(where, f"`recipe` is not one: {error}") from None
        return _made(where, cls, {**given, "images": images, "recipe": plan})


def _made(where: str, kind: Any, given: Mapping[str, Any]) -> Any:
    unknown = sorted(set(given) - {each.name for each in fields(kind)})
    if unknown:
        rule = f"a network has no `{unknown[0]}`"
        raise CurvescopeError(where, rule, remedy=f"see {__name__}.{kind.__name__}")
    try:
        return kind(**given)
    except TypeError as error:
        raise CurvescopeError(where, f"a network lacks something: {error}") from None


@dataclass(frozen=True)
class Trained:
    """A trained network with the weights it started from."""

    model: nn.Module
    initial: dict[str, Tensor]
    seed: int

    def at_start(self) -> nn.Module:
        """A copy of the network with its initial weights."""
        model = copied(self.model)
        model.load_state_dict(self.initial)
        return model


@dataclass(frozen=True)
class Group:
    """Trained networks of one description, and the images that go with them."""

    key: str
    description: Description
    networks: tuple[Trained, ...]
    data: Dataset  # that they were trained on
    few: Dataset  # that curvature is taken over
    load_held_out: Callable[[], Dataset | None]

    @cached_property
    def held_out(self) -> Dataset:
        """The images that they are tested on."""
        images = self.load_held_out()
        if images is None:
            raise CurvescopeError(f"networks.{self.key}", "has no `held_out` images")
        return images

    @property
    def identity(self) -> str:
        """What decides numbers: the trained and the initial weights, and the images."""
        weights = [(trained.model, trained.initial, trained.seed) for trained in self.networks]
        return digest("group", self.description, weights, self.data, self.few)

    @property
    def name(self) -> str:
        """Of the network, as in :func:`curvescope.networks.network`."""
        return self.description.network

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """The trained networks, by seed."""
        return tuple(trained.model for trained in self.networks)

    def problem(
        self, model: nn.Module, data: Dataset | None = None, *, size: int = 2500, mode: str = "eval"
    ) -> Problem:
        """A network on the images for its curvature, or on others, in batches of ``size``."""
        return Problem(model, (self.few if data is None else data).batches(size), mode=mode)


def group(
    key: str, description: Description, *, work: Path, root: Path | None, device: str, seed: int,
    tell: Callable[[str], None], workers: Workers | None = None,
) -> Group:  # fmt: skip
    """The trained networks of a description: from ``work`` if they are there, else trained."""
    data = description.images.load(root=root, seed=seed, device=device)
    networks = trained(
        key, description, data, work=work, device=device, seed=seed, tell=tell, workers=workers
    )
    few = data
    if description.curvature_per_class is not None:
        few = data.per_class(description.curvature_per_class)
    elif description.curvature is not None and description.curvature < len(data):
        few = replace(data, X=data.X[: description.curvature], y=data.y[: description.curvature])
    held_out = description.held_out

    def load() -> Dataset | None:
        return None if held_out is None else held_out.load(root=root, seed=seed, device=device)

    return Group(key, description, networks, data, few, load)


def trained(
    key: str,
    of: Description,
    data: Dataset,
    *,
    work: Path,
    device: str = "cpu",
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
    workers: Workers | None = None,
) -> tuple[Trained, ...]:
    """Networks trained side by side, one for each seed.

    The final weights are kept in ``work / KEY.safetensors`` as ``seed0.fc1.weight`` and so on, with
    ``KEY.json``, which says by what they were trained. They are taken from there if that is the
    same: recipe, network, initialization and data. Only the others are trained, and unfinished
    trainings go on where they were. Initial weights follow from the seed.
    """
    outputs = data.classes if of.outputs is None else of.outputs
    seeds = of.seeds_from(seed)
    models = [fresh(of, data, each).to(device) for each in seeds]
    initial = [{name: t.clone() for name, t in model.state_dict().items()} for model in models]
    recipes = [replace(of.recipe, seed=each) for each in seeds]
    file = work / f"{key}.safetensors"
    wanted = {
        f"seed{each}": _identity(of.network, outputs, of.init, model, recipe, data)
        for each, model, recipe in zip(seeds, models, recipes, strict=True)
    }
    weights, stored = _read(file)
    missing = [i for i, (name, stamp) in enumerate(wanted.items()) if stored.get(name) != stamp]
    if missing:
        tell(f"training {len(missing)} × {of.network}, {of.recipe.epochs} epochs")
        names = list(wanted)
        folders = [work / "training" / f"{key}-{names[i]}-{wanted[names[i]][:16]}" for i in missing]
        for folder in folders:
            io.make_folder(folder.parent)
        chosen = [models[i] for i in missing]
        if workers is not None:
            todo = [seeds[i] for i in missing], [recipes[i] for i in missing]
            workers.finish(of, *todo, folders, fast=of.fast)
        with fast_precision() if of.fast else nullcontext():
            train_many(
                chosen, data.to(device), [recipes[i] for i in missing], folders=folders, resume=True
            )
        new = {names[i] for i in missing}
        weights = {k: v for k, v in weights.items() if k.partition(".")[0] not in new}
        for i, model in zip(missing, chosen, strict=True):
            weights |= {f"{names[i]}.{name}": t for name, t in model.state_dict().items()}
        _write(file, weights, {**stored, **wanted})
    for each, model in zip(seeds, models, strict=True):
        own = f"seed{each}."
        model.load_state_dict(
            {k.removeprefix(own): v for k, v in weights.items() if k.startswith(own)}
        )
    return tuple(
        Trained(evaluated(model), start, each)
        for model, start, each in zip(models, initial, seeds, strict=True)
    )


def fresh(of: Description, data: Dataset, seed: int) -> nn.Module:
    """An untrained network of the description, with the weights of this seed, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    outputs = data.classes if of.outputs is None else of.outputs
    model = network(of.network, data.input_shape, outputs, init=of.init, generator=generator)
    return norms_after_pooling(model) if of.norms == "after pooling" else model


def _write(file: Path, weights: Mapping[str, Tensor], stamps: Mapping[str, str]) -> None:
    io.make_folder(file.parent)
    io.write_tensors(file, {name: tensor.cpu().contiguous() for name, tensor in weights.items()})
    io.write_json(file.with_suffix(".json"), {**stamps, _FILE: file_digest(file)})


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The weights in a file and by what each seed's were trained; nothing where that is unsaid."""
    noted = file.with_suffix(".json")
    if not file.is_file() or not noted.is_file():
        return {}, {}
    stamps = io.read_json(noted)
    if not isinstance(stamps, dict) or stamps.pop(_FILE, None) != file_digest(file):
        return {}, {}
    return io.read_tensors(file)[0], stamps


def _identity(
    name: str, outputs: int, init: str, model: nn.Module, recipe: Recipe, data: Dataset
) -> str:
    """What decides the weights after training, up to rounding.

    A recipe counts by what is not its default, so that new settings leave old weights as they are.
    """
    chosen = {
        each.name: getattr(recipe, each.name)
        for each in fields(recipe)
        if getattr(recipe, each.name) != each.default
    }
    structure = [(place, type(module).__name__) for place, module in model.named_modules()]
    return digest(name, outputs, init, structure, chosen, data.y, *_pixels(data.X))


def _pixels(X: Tensor) -> tuple[tuple[int, ...], list[str], Tensor]:
    """Inputs as they are before rounding, which differs between devices: bytes and their range."""
    axes = [axis for axis in range(X.ndim) if axis != 1 or X.ndim < 3]
    low, high = X.amin(axes, keepdim=True), X.amax(axes, keepdim=True)
    levels = 255 * (X - low) / (high - low).clamp(min=torch.finfo(X.dtype).tiny)
    ends = [f"{float(end):.2g}" for end in (*low.flatten(), *high.flatten())]
    return tuple(X.shape), ends, (levels + 0.37).floor().to(torch.uint8)


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
