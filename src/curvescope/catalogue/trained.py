"""The trained networks that entries look at: trained once, kept as weights, found again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from curvescope import io
from curvescope._state import evaluated
from curvescope.catalogue.entry import Settings
from curvescope.data import Dataset
from curvescope.networks import network
from curvescope.training import Recipe, train_many


@dataclass(frozen=True)
class Subject:
    """A trained network with the weights it started from."""

    model: nn.Module
    initial: dict[str, Tensor]
    seed: int

    def at_start(self) -> nn.Module:
        """A copy of the network with its initial weights."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.initial)
        return model


def trained(
    settings: Settings,
    key: str,
    name: str,
    data: Dataset,
    recipe: Recipe,
    *,
    seeds: Sequence[int] = (0,),
    init: str = "pytorch",
    outputs: int | None = None,
    arrange: Callable[[nn.Module], nn.Module] | None = None,
) -> tuple[Subject, ...]:
    """Networks trained by ``recipe``, one for each seed, side by side.

    The final weights are kept in ``settings.work / KEY.safetensors`` as ``seed0.fc1.weight`` and so
    on, and are taken from there when it holds all seeds; unfinished trainings go on where they
    were. Initial weights follow from the seed.

    Args:
        settings: Where to keep them, and the device.
        key: Names everything that decides the weights: ``mnist`` for the committed ones.
        name: Of the network, as in :func:`~curvescope.networks.network`.
        data: The training data, already as the network is to see it.
        recipe: Its seed is replaced by each of ``seeds``.
        seeds: One network for each.
        init: As for :func:`~curvescope.networks.network`.
        outputs: Of the network; the number of classes by default.
        arrange: What is done to the network before it is trained.
    """
    outputs = data.classes if outputs is None else outputs
    models = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        model = network(name, data.input_shape, outputs, init=init, generator=generator)
        model = model if arrange is None else arrange(model)
        models.append(model.to(settings.device))
    initial = [
        {key: value.clone() for key, value in model.state_dict().items()} for model in models
    ]
    file = settings.work / f"{key}.safetensors"
    weights = io.read_tensors(file)[0] if file.is_file() else {}
    if not all(any(k.startswith(f"seed{seed}.") for k in weights) for seed in seeds):
        settings.tell(f"training {len(models)} × {name}, {recipe.epochs} epochs")
        train_many(
            models,
            data.to(settings.device),
            [replace(recipe, seed=seed) for seed in seeds],
            folders=[settings.work / "training" / f"{key}-seed{seed}" for seed in seeds],
            resume=True,
        )
        for seed, model in zip(seeds, models, strict=True):
            state = model.state_dict().items()
            weights |= {f"seed{seed}.{k}": value.cpu().contiguous() for k, value in state}
        io.make_folder(file.parent)
        io.write_tensors(file, weights)
    for seed, model in zip(seeds, models, strict=True):
        start = f"seed{seed}."
        found = {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}
        model.load_state_dict(found)
    return tuple(
        Subject(evaluated(model), start, seed)
        for model, start, seed in zip(models, initial, seeds, strict=True)
    )
