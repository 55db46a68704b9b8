"""Training by names: a network, a data set and a recipe into a folder.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from curvescope.data import Dataset, dataset
from curvescope.data.normalize import Kind
from curvescope.flatness import TraceRegularizer
from curvescope.networks.names import network as build
from curvescope.training import loop
from curvescope.training.recipe import Recipe
from curvescope.training.run import Trained
from curvescope.training.watch import Options


@dataclass(frozen=True)
class NamedData:
    """Both splits of a data set by its name, and the options with which they were loaded.

    ``options`` goes into a run's configuration, so that the same data can be loaded again.
    """

    train: Dataset
    test: Dataset
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.train.name

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The training samples, as a problem and a training take them."""
        return self.train.tensors


def named_data(
    name: str,
    *,
    root: Path | None = None,
    normalize: Kind = "none",
    per_class: int | None = None,
    seed: int | None = None,
) -> NamedData:
    """Load both splits; ``per_class`` limits the training set, and the test set only of a mixture.

    >>> data = named_data("digits", per_class=3, normalize="channel")
    >>> len(data.train), data.options
    (30, {'normalize': 'channel', 'per_class': 3, 'seed': None})
    """
    test_size = per_class if name.startswith("gaussian-mixture") else None
    return NamedData(
        dataset(name, root=root, per_class=per_class, seed=seed, normalize=normalize),
        dataset(name, root=root, split="test", per_class=test_size, seed=seed, normalize=normalize),
        {"normalize": normalize, "per_class": per_class, "seed": seed},
    )


RATES = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3, "gadam": 1e-3}
_MOMENTUM = 0.9


def usual_recipe(network: str, *, seed: int, **chosen: Any) -> Recipe:
    """A recipe that trains the network well, with the settings that are chosen and not None.

    For the papers' networks SGD with momentum and linear decay (DH's own is ``lr=0.01``,
    ``momentum=0``, ``schedule="constant"`` for a thousand epochs). For a GPT what is usual for
    language models: AdamW with weight decay, a warm-up of one epoch and a cosine; the weights in
    the middle of the training are kept as well.

    >>> usual_recipe("LeNet5", seed=0).schedule, usual_recipe("GPT-4x128", seed=0).checkpoints
    ('linear', (5,))
    """
    language = network.upper().startswith("GPT")
    settings: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    if language:
        epochs = settings.setdefault("epochs", 10)
        usual = {"optimizer": "adamw", "batch_size": 16, "weight_decay": 0.1, "lr": 2e-3}
        usual |= {"warmup": min(1.0, epochs / 10), "checkpoints": tuple({epochs // 2} - {0})}
        schedule = "cosine"
    else:
        usual = {"optimizer": "sgd", "batch_size": 128, "epochs": 30}
        schedule = "linear"
    optimizer = settings.get("optimizer", usual["optimizer"])
    if optimizer != usual["optimizer"] or not language:
        usual["lr"] = RATES.get(optimizer, 0.0)
    if optimizer == "sgd":
        usual["momentum"] = _MOMENTUM
    usual["schedule"] = schedule if settings.get("average_from") is None else "averaging"
    return Recipe(seed=seed, **{**usual, **settings})


def train_network(
    name: str,
    data: NamedData,
    recipe: Recipe,
    *,
    folder: Path,
    init: str | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    trace: tuple[str, float] | None = None,
    monitor: Options | None = None,
    tell: loop.Tell | None = None,
) -> tuple[nn.Module, Trained]:
    """Train a network of the papers; no other process can work in the folder meanwhile.

    Args:
        name: The network, such as ``LeNet5``; it has one output with a binary loss.
        data: Both splits.
        recipe: How to train; its seed decides the initial weights too.
        folder: Where the run is kept; a finished one is read.
        init: How weights are drawn; the network's own way if none.
        device: Where to train.
        resume: Whether an unfinished run in the folder is continued.
        trace: Penalize the trace of ``"ggn"`` or ``"hessian"`` with this weight (PP eq. 13).
        monitor: As for :func:`curvescope.train`.
        tell: Called with the progress after each step.

    Raises:
        CurvescopeError: If names, data, recipe or folder do not fit; nothing is written then.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "run"
    >>> data = named_data("digits", per_class=3)
    >>> model, run = train_network("F-4", data, Recipe(seed=0, epochs=2), folder=place)
    >>> len(run.history), (place / "weights" / "final.safetensors").exists()
    (2, True)
    """
    outputs = recipe.minimized("train").width(data.train.classes)
    generator = torch.Generator().manual_seed(recipe.seed)
    model = build(name, data.train.input_shape, outputs, init=init, generator=generator).to(device)
    penalty = None
    if trace is not None:
        kind, weight = trace
        penalty = TraceRegularizer(
            kind, weight=weight, generator=generator, loss=recipe.minimized("train")
        )
    trained = loop.train(
        model,
        data,
        recipe,
        test=data.test,
        folder=folder,
        resume=resume,
        penalty=penalty,
        monitor=monitor,
        tell=tell,
    )
    return model, trained
