"""A finished training run as the subject of an analysis: its network and its training data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import nn

from curvescope.data import topics
from curvescope.data.normalize import KINDS
from curvescope.errors import CurvescopeError
from curvescope.experiments.load import Splits
from curvescope.experiments.training import NamedData, named_data
from curvescope.training.folder import TrainingFolder
from curvescope.training.records import DataNote
from curvescope.training.run import describe
from curvescope.training.weights import load_network


def finished_run(folder: Path) -> TrainingFolder:
    """A finished training run.

    Raises:
        CurvescopeError: If the folder holds none, or one that is unfinished or diverged.
    """
    where = repr(str(folder))
    if not (folder / "config.json").exists():
        rule = "is not the folder of a training run"
        raise CurvescopeError(where, rule, remedy="make one with curvescope train")
    run = TrainingFolder(folder)
    end = run.result()
    if end is not None and end.diverged is not None:
        rule = f"the training diverged in epoch {end.diverged}"
        raise CurvescopeError(where, rule, remedy="train again with a smaller --lr")
    if not (folder / "weights" / "final.safetensors").exists():
        rule = "has no final weights"
        raise CurvescopeError(where, rule, remedy="finish it with curvescope train --resume")
    return run


def load_run(folder: Path, checkpoint: str = "final") -> nn.Module:
    """The trained network, or as it was after an epoch.

    Args:
        folder: The run.
        checkpoint: ``"final"``, ``"initial"``, or an epoch after which the weights were kept.

    Raises:
        CurvescopeError: If these weights were not kept, are damaged, or not those of this run.
    """
    run = TrainingFolder(folder)
    return load_network(run.weights(checkpoint_name(run, checkpoint)))


def checkpoint_name(run: TrainingFolder, checkpoint: str) -> str:
    """What the weights after an epoch are called in the folder of a run."""
    names = {"initial": "initial", "0": "initial", "final": "final"}
    kept = run.config.recipe.checkpoints
    names |= {str(run.config.recipe.epochs): "final", **{str(e): f"epoch-{e:05d}" for e in kept}}
    if checkpoint not in names:
        rule = "`checkpoint` must be one whose weights were kept"
        remedy = f"there are {', '.join(dict.fromkeys(names))}"
        raise CurvescopeError(repr(str(run.path)), rule, given=repr(checkpoint), remedy=remedy)
    return names[checkpoint]


def load_run_data(folder: Path, *, root: Path | None = None, seed: int | None = None) -> Splits:
    """The data that a run was trained on, loaded by its name and compared by its contents.

    A run of ``curvescope train`` records the options of the data. For others, all normalizations
    and parts of the set are tried.

    Args:
        folder: The run.
        root: Where the data files lie.
        seed: The seed of random labels, random sub-samples or mixtures, as in training; what the
            run noted if none.

    Raises:
        CurvescopeError: If nothing under this name has the same contents.
    """
    noted = finished_run(folder).config.data
    where = repr(str(folder))
    if not noted.name:
        rule = "was trained on data without a name"
        raise CurvescopeError(where, rule, remedy="name it with --data")
    for data in _candidates(noted, noted.name, root, seed):
        if describe(data, data.tensors).sha256 == noted.sha256:
            return Splits(data.train, data.test, noted.name)
    rule = f"the data found as {noted.name!r} is not what it was trained on"
    if topics.context(noted.name) is not None:
        remedy = "the text differs between versions of Python: use that of the training"
        raise CurvescopeError(where, rule, remedy=remedy)
    remedy = "give --root or --data-seed as in training, or name the data with --data"
    raise CurvescopeError(where, rule, remedy=remedy)


def _candidates(
    noted: DataNote, name: str, root: Path | None, seed: int | None
) -> Iterator[NamedData]:
    """The data with the recorded options; without these, the whole set or a balanced part."""
    if (options := noted.options) is not None:
        yield named_data(name, root=root, **{**options, **({} if seed is None else {"seed": seed})})
        return
    samples = noted.samples
    if name.startswith("gaussian-mixture"):
        classes = int(name.partition("-C")[2].partition("-")[0])
        yield named_data(name, per_class=samples // classes, seed=seed)
        return
    for kind in KINDS:
        whole = named_data(name, root=root, normalize=kind, seed=seed)
        if len(whole.train) == samples:
            yield whole
        elif samples % whole.train.classes == 0:
            size = samples // whole.train.classes
            yield named_data(name, root=root, normalize=kind, per_class=size, seed=seed)
