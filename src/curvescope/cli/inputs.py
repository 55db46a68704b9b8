"""Models and data as the options name them: of a run, or of the user's own files and code."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments import load, trained
from curvescope.experiments.load import Splits

_ARRAYS = "arrays X and y for training and, if there is test data, X_test and y_test"


@dataclass(frozen=True)
class Subject:
    """What a command is about; ``name`` is what the user called the model, if that was code."""

    model: nn.Module
    data: Splits
    loss: str | None  # None where a training had one of its own
    name: str | None = None


def of_run(run: Path, data: str | None, *, root: Path | None, seed: int | None) -> Subject:
    """A finished training's network, with its own data or with data by another name."""
    recipe = trained.finished_run(run).config.recipe
    splits = (
        trained.load_run_data(run, root=root, seed=seed)
        if data is None
        else load_data(data, root=root, seed=seed)
    )
    return Subject(trained.load_run(run), splits, recipe.loss)


def own(
    model: str, data: str, weights: Path | None, *, root: Path | None, seed: int | None
) -> Subject:
    """The user's model with its weights, or as the code returns it, and the user's data."""
    splits = load_data(data, root=root, seed=seed)
    network = load_model(model, splits.train)
    if weights is not None:
        load.read_weights(weights, network)
    return Subject(network, splits, "cross_entropy", model)


def choose_device(name: str) -> torch.device:
    """The device of ``--device``; ``auto`` is the first GPU, or the CPU where there is none.

    Raises:
        CurvescopeError: If torch finds no such device here.
    """
    kind, _, index = name.partition(":")
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if kind in there and int(index or 0) >= there[kind]:
        devices = [f"{each}:{i}" for each, count in there.items() for i in range(count)]
        found = ", ".join(["cpu", *devices])
        rule = f"cannot be used, torch finds only {found} here"
        raise CurvescopeError(f"--device {name!r}", rule, remedy="use auto or cpu")
    return load.choose_device(name)


def load_model(text: str, data: Any) -> nn.Module:
    """As :func:`curvescope.experiments.load.load_model`; says which arguments a function wants."""
    try:
        return load.load_model(text, data)
    except CurvescopeError as error:
        _explain_call("--model", text, error, "called without arguments")
        raise


def load_data(text: str, *, root: Path | None, seed: int | None) -> Splits:
    """As :func:`curvescope.experiments.load.load_data`, with a closer look at files."""
    if text.endswith(".npz"):
        _check_arrays(f"--data {text!r}", Path(text))
    elif ":" not in text and Path(text).exists():
        raise CurvescopeError(
            f"--data {text!r}",
            "must be an .npz archive, a function as in file.py:load, or the name of a data set "
            "(curvescope data list)",
        )
    try:
        return load.load_data(text, root=root, seed=seed)
    except CurvescopeError as error:
        how = 'called without arguments, or with split="train" and split="test" alone'
        _explain_call("--data", text, error, how)
        raise


def _explain_call(option: str, text: str, error: CurvescopeError, how: str) -> None:
    """If a function failed because it wants arguments, say so with its signature."""
    place, _, name = text.rpartition(":")
    found: Any = sys.modules.get(Path(place).stem if place.endswith(".py") else place)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(error.__cause__, TypeError) or not callable(found):
        return
    try:
        signature = inspect.signature(found)
    except ValueError:  # a function of C that does not tell
        return
    wanted = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not (option == "--data" and parameter.name == "split")
    ]
    if wanted:
        rule = f"is {how}, but it is {name}{signature}"
        remedy = f"give {' and '.join(wanted)} a default, or name a function that calls it"
        raise CurvescopeError(f"{option} {text!r}", rule, remedy=remedy) from error


def _check_arrays(where: str, path: Path) -> None:
    """Refuse what is no archive of plain arrays with the right names, without reading them."""
    if not path.exists():
        raise CurvescopeError(where, "there is no such file")
    headers = io.array_headers(path, where)
    if not {"X", "y"} <= headers.keys() or ("X_test" in headers) != ("y_test" in headers):
        rule = f"needs {_ARRAYS}"
        raise CurvescopeError(where, rule, remedy=f"it holds {', '.join(headers) or 'none'}")
