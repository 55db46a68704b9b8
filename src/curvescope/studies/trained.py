"""The trained networks that entries look at: trained once, kept as weights, found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from curvescope import io
from curvescope._state import copied, evaluated
from curvescope.data import Dataset
from curvescope.identity import digest, file_digest
from curvescope.networks import network
from curvescope.studies.entry import Settings
from curvescope.training import Recipe, train_many

_FILE = "file"  # the checksum of the weights' file


@dataclass(frozen=True)
class Subject:
    """A trained network with the weights it started from."""

    model: nn.Module
    initial: dict[str, Tensor]
    seed: int

    def at_start(self) -> nn.Module:
        """A copy of the network with its initial weights."""
        model = copied(self.model)
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
    on, with ``KEY.json``, which says by what they were trained. They are taken from there if that
    is the same: recipe, network, initialization and data; others are trained anew, and unfinished
    trainings go on where they were. Initial weights follow from the seed.

    Args:
        settings: Where to keep them, and the device.
        key: A name for the files: ``mnist`` for the committed ones.
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
    wanted = {
        f"seed{seed}": _identity(name, outputs, init, model, replace(recipe, seed=seed), data)
        for seed, model in zip(seeds, models, strict=True)
    }
    weights, known = _read(file)
    if not wanted.items() <= known.items():
        settings.tell(f"training {len(models)} × {name}, {recipe.epochs} epochs")
        train_many(
            models,
            data.to(settings.device),
            [replace(recipe, seed=seed) for seed in seeds],
            folders=[
                settings.work / "training" / f"{key}-{each}-{wanted[each][:16]}" for each in wanted
            ],
            resume=True,
        )
        weights = {k: v for k, v in weights.items() if k.partition(".")[0] not in wanted}
        for seed, model in zip(seeds, models, strict=True):
            state = model.state_dict().items()
            weights |= {f"seed{seed}.{k}": value.cpu().contiguous() for k, value in state}
        io.make_folder(file.parent)
        io.write_tensors(file, weights)
        stamps = {**known, **wanted, _FILE: file_digest(file)}
        io.write_json(file.with_suffix(".json"), stamps)
    for seed, model in zip(seeds, models, strict=True):
        start = f"seed{seed}."
        found = {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}
        model.load_state_dict(found)
    return tuple(
        Subject(evaluated(model), start, seed)
        for model, start, seed in zip(models, initial, seeds, strict=True)
    )


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
