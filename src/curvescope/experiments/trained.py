"""A finished training run as the subject of an analysis: its network and the data it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.data import Dataset, dataset
from curvescope.data.normalise import KINDS, Kind
from curvescope.experiments.load import Splits
from curvescope.training.run import describe
from curvescope.training.weights import load_network


def run_config(folder: Path) -> dict[str, Any]:
    """The configuration of a finished training run.

    Raises:
        CurvescopeError: If the folder holds none, or one that is unfinished or diverged.
    """
    where = f"--run {str(folder)!r}"
    if not (folder / "config.json").is_file():
        msg = f"{where}: is not the folder of a training run; make one with curvescope train"
        raise CurvescopeError(msg)
    config = io.read_json(folder / "config.json")
    if not isinstance(config, dict) or not {"recipe", "data"} <= config.keys():
        msg = f"{where}: is not the folder of a training run, but of something else"
        raise CurvescopeError(msg)
    if not (folder / "weights" / "final.safetensors").is_file():
        msg = f"{where}: has no final weights; finish it with curvescope train --resume"
        raise CurvescopeError(msg)
    return config


def load_run(folder: Path) -> nn.Module:
    """The trained network."""
    return load_network(folder)


def load_run_data(folder: Path, *, root: Path | None = None, seed: int | None = None) -> Splits:
    """The data that a run was trained on, found by its name and recognised by its contents.

    Which normalisation and which part of the set was used is found by trying; what is returned has
    the digest that the run noted.

    Args:
        folder: The run.
        root: Where the data files lie.
        seed: The seed of random labels, random sub-samples or mixtures, as in training.

    Raises:
        CurvescopeError: If nothing under this name has the same contents.
    """
    noted = run_config(folder)["data"]
    where = f"--run {str(folder)!r}"
    if not noted.get("name"):
        msg = f"{where}: was trained on data without a name; name it with --data"
        raise CurvescopeError(msg)
    name, samples = str(noted["name"]), int(noted["shapes"][0][0])
    for kind in KINDS:
        found = _attempt(name, samples, kind, root, seed)
        if found is not None and describe(found, found.tensors)["sha256"] == noted["sha256"]:
            size = len(found) // found.classes if name.startswith("gaussian-mixture") else None
            test = dataset(name, root=root, split="test", per_class=size, seed=seed, normalise=kind)
            return Splits(found, test, name)
    msg = (
        f"{where}: the data found as {name!r} is not what it was trained on; give --root or "
        "--data-seed as in training, or name the data with --data"
    )
    raise CurvescopeError(msg)


def _attempt(
    name: str, samples: int, kind: Kind, root: Path | None, seed: int | None
) -> Dataset | None:
    """The whole set, or a balanced part of it, with so many samples."""
    if name.startswith("gaussian-mixture"):
        if kind != "none":
            return None
        classes = int(name.partition("-C")[2].partition("-")[0])
        return dataset(name, per_class=samples // classes, seed=seed)
    whole = dataset(name, root=root, seed=seed, normalise=kind)
    if len(whole) == samples:
        return whole
    if samples % whole.classes:
        return None
    return dataset(name, root=root, per_class=samples // whole.classes, seed=seed, normalise=kind)
