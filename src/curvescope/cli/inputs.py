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
from curvescope._state import evaluated
from curvescope.cli.ranks import shard
from curvescope.errors import CurvescopeError
from curvescope.experiments import load, trained
from curvescope.experiments.load import Splits
from curvescope.experiments.stages.context import derived
from curvescope.problem import Problem
from curvescope.ranks import Group

_ARRAYS = "arrays X and y for training and, if there is test data, X_test and y_test"


@dataclass(frozen=True)
class Subject:
    """A model with its data; ``name`` is that of the model if it comes from the user's code."""

    model: nn.Module
    data: Splits
    loss: str | None  # None for a training with a loss of the user's code
    name: str | None = None


def of_run(
    run: Path, data: str | None, *, root: Path | None, seed: int | None, checkpoint: str = "final"
) -> Subject:
    """The network of a finished training, with the data of its training or with ``data``."""
    recipe = trained.finished_run(run).config.recipe
    splits = (
        trained.load_run_data(run, root=root, seed=seed)
        if data is None
        else load_data(data, root=root, seed=seed)
    )
    return Subject(trained.load_run(run, checkpoint), splits, recipe.loss)


def of_code(
    model: str, data: str, weights: Path | None, *, root: Path | None, seed: int | None
) -> Subject:
    """The model and data of the user's code, with the weights of a file if there is one."""
    splits = load_data(data, root=root, seed=seed)
    network = load_model(model, splits.train)
    if weights is not None:
        load.read_weights(weights, network)
    return Subject(network, splits, "cross_entropy", model)


def subject_of(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    data: str | None,
    *,
    root: Path | None,
    seed: int | None,
    checkpoint: str = "final",
) -> Subject:
    """The model with its weights and data, from a run or from the user's code and files."""
    if run is not None:
        return of_run(run, data, root=root, seed=seed, checkpoint=checkpoint)
    assert model is not None, "checked before"
    assert data is not None, "checked before"
    return of_code(model, data, weights, root=root, seed=seed)


def problems(
    subject: Subject,
    loss: str | None,
    device: str,
    samples: int | None,
    batch_size: int | None,
    seed: int,
    group: Group | None = None,
) -> tuple[Problem, Problem | None]:
    """The problem of the training data, and that of the test data if there is any.

    In a group their data lie on all ranks.
    """
    group = Group.of(group)
    if (named := loss or subject.loss) is None:
        rule = "`run` was trained with a loss of the user's code"
        raise CurvescopeError("analyze", rule, remedy="name it with `loss=file.py:Loss`")
    chosen = load.load_loss(named)
    model = evaluated(subject.model.to(choose_device(device)))
    train, test = subject.data.train, subject.data.test
    if samples is not None:
        generator = torch.Generator().manual_seed(derived(seed, "samples"))
        train = load.choose_samples(train, samples, generator)

    def problem(data: Any) -> Problem:
        in_memory = isinstance(getattr(data, "tensors", data), tuple)
        size = (batch_size or load.usual_batch_size(data)) if in_memory else None
        data, size = shard(data, size, group)
        return Problem(model, data, loss=chosen, batch_size=size, group=group)

    return problem(train), None if test is None else problem(test)


def choose_device(name: str) -> torch.device:
    """The device of ``--device``; ``auto`` is the first GPU, or the CPU where there is none.

    Raises:
        CurvescopeError: If torch finds no such device here.
    """
    kind, _, index = name.partition(":")
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if kind in there and int(index or 0) >= there[kind]:
        devices = [f"{each}:{i}" for each, count in there.items() for i in range(count)]
        devices_here = ", ".join(["cpu", *devices])
        rule = f"cannot be used, torch finds only {devices_here} here"
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
    """As :func:`curvescope.experiments.load.load_data`, but files are checked first."""
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
    function: Any = sys.modules.get(load.module_name(place))
    for part in name.split("."):
        function = getattr(function, part, None)
    if not isinstance(error.__cause__, TypeError) or not callable(function):
        return
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C that does not tell
        return
    required = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not (option == "--data" and parameter.name == "split")
    ]
    if required:
        rule = f"is {how}, but it is {name}{signature}"
        remedy = f"give {' and '.join(required)} a default, or name a function that calls it"
        raise CurvescopeError(f"{option} {text!r}", rule, remedy=remedy) from error


def _check_arrays(where: str, path: Path) -> None:
    """Refuse what is no archive of plain arrays with the right names, without reading them."""
    if not path.exists():
        raise CurvescopeError(where, "there is no such file")
    headers = io.array_headers(path, where)
    if not {"X", "y"} <= headers.keys() or ("X_test" in headers) != ("y_test" in headers):
        rule = f"needs {_ARRAYS}"
        raise CurvescopeError(where, rule, remedy=f"it holds {', '.join(headers) or 'none'}")
