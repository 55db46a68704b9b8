"""Models and data for an analysis: from a training run, or from the user's own files and code.

Weights and arrays are read without executing anything. Code runs only where the user names it, as
``package.module:function`` or ``file.py:function``; modules in the current directory are found.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from curvescope import io
from curvescope.data import Dataset, dataset
from curvescope.errors import CurvescopeError
from curvescope.experiments.stages.plan import Extra
from curvescope.identity import checksum
from curvescope.networks.names import network
from curvescope.problem.losses import Loss
from curvescope.training.weights import load_weights

T = TypeVar("T")
_SOURCE = "__curvescope_source__"  # of a module from a file: executed again if it has changed
_SAMPLES, _POSITIONS = 500, 4096  # in a batch
_FOREIGN_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Splits:
    """Training and test data, as a problem takes them, and their name."""

    train: Any
    test: Any
    name: str


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let modules in ``folder`` be imported while the block runs."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def load_model(text: str, data: Any = None) -> nn.Module:
    """The model that ``package.module:build``, ``file.py:build`` or a network's name stands for.

    Args:
        text: Code that is called without arguments and returns the model, or a name such as
            ``LeNet5``.
        data: For a network by its name: the data set that gives inputs and classes.

    Raises:
        CurvescopeError: If it cannot be imported, called or built.

    >>> load_model("torch.nn:Identity")
    Identity()
    """
    where = f"--model {text!r}"
    if ":" in text:
        model = _call(where, _find(where, text))
        if not isinstance(model, nn.Module):
            rule = "must return a torch.nn.Module"
            raise CurvescopeError(where, rule, given=type(model).__name__)
        return model
    if not isinstance(data, Dataset):
        rule = "a network by its name needs --data by its name too"
        remedy = "code is named as package.module:function or file.py:function"
        raise CurvescopeError(where, rule, remedy=remedy)
    return network(text, data.input_shape, data.classes)


def load_loss(text: str) -> str | nn.Module | Callable[..., Tensor] | Loss:
    """The loss that a name, ``package.module:Loss`` or ``file.py:Loss`` stands for.

    Code names a loss, a function of ``(output, target)``, or a class that is called without
    arguments to make one.

    >>> load_loss("mse"), load_loss("torch.nn:MSELoss")
    ('mse', MSELoss())
    """
    if ":" not in text:
        return text
    where = f"--loss {text!r}"
    loss = _find(where, text)
    return _call(where, loss) if isinstance(loss, type) else loss


def load_extra(text: str) -> Extra:
    """The user's stage that ``package.module:NAME`` or ``file.py:NAME`` stands for."""
    return load_instance(f"--extra {text!r}", text, Extra)


def load_grouping(text: str) -> Any:
    """The map or function from labels to classes that ``file.py:NAME`` stands for."""
    where = f"--classes {text!r}"
    if ":" not in text:
        rule = "must be a number, package.module:NAME or file.py:NAME"
        raise CurvescopeError(where, rule, remedy="--classes 10 takes the ten most frequent labels")
    value = _find(where, text)
    if not callable(value) and not isinstance(value, Mapping | Sequence | Tensor):
        rule = "must name a map, a list or a function from labels to classes"
        raise CurvescopeError(where, rule, given=type(value).__name__)
    return value


def load_instance(where: str, text: str, kind: type[T]) -> T:
    """The object of a class that ``package.module:NAME`` or ``file.py:NAME`` stands for."""
    value = _find(where, text)
    if not isinstance(value, kind):
        rule = f"must name an object of the class {kind.__name__}"
        raise CurvescopeError(where, rule, given=type(value).__name__)
    return value


def read_weights(path: Path, model: nn.Module) -> None:
    """Put the weights of a safetensors file, and nothing else, into ``model``."""
    if path.suffix in _FOREIGN_WEIGHTS:
        rule = "only safetensors files are read, since others can execute code"
        remedy = 'save with safetensors.torch.save_file(model.state_dict(), "weights.safetensors")'
        raise CurvescopeError(f"--weights {str(path)!r}", rule, remedy=remedy)
    load_weights(path, model)


def load_data(text: str, *, root: Path | None = None, seed: int | None = None) -> Splits:
    """The data that code, an ``.npz`` file or a data set's name stands for.

    Code is called without arguments and returns the training data (tensors ``(X, y)``, a data set,
    a loader) or a mapping with ``"train"`` and ``"test"``; if it has a parameter ``split``, it is
    called with ``"train"`` and with ``"test"``. A file holds arrays ``X`` and ``y`` and perhaps
    ``X_test`` and ``y_test``.

    Args:
        text: ``package.module:load``, ``file.py:load``, ``arrays.npz`` or a name such as ``mnist``.
        root: Where the files of a data set by name lie.
        seed: For data sets by name that draw something at random.

    Raises:
        CurvescopeError: If it cannot be found, read or called.

    >>> load_data("mnist-6k").test
    Dataset('mnist-6k', test: 1,000 samples of shape 1×28×28, 10 classes, float32 on cpu)
    """
    where = f"--data {text!r}"
    if text.endswith(".npz"):
        return _arrays(where, Path(text))
    if ":" not in text:
        train = dataset(text, root=root, seed=seed)
        return Splits(train, dataset(text, root=root, split="test", seed=seed), text)
    function = _find(where, text)
    if callable(function) and "split" in inspect.signature(function).parameters:
        train, test = (_call(where, function, split=split) for split in ("train", "test"))
        return Splits(train, test, text)
    data = _call(where, function)
    if isinstance(data, Mapping) and "train" in data:
        return Splits(data["train"], data.get("test"), text)
    return Splits(data, None, text)


def choose_samples(data: Any, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``samples`` random samples, in the order of the data; all if there are no more.

    Raises:
        CurvescopeError: If the data is not a pair of tensors in memory.

    >>> X, y = choose_samples((torch.eye(9), torch.arange(9)), 3, torch.Generator().manual_seed(0))
    >>> len(y), bool((X.argmax(1) == y).all()), bool((y.diff() > 0).all())
    (3, True, True)
    """
    pair = getattr(data, "tensors", data)
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(isinstance(part, Tensor) for part in pair)
    ):
        rule = "needs data in memory, a pair of tensors or a data set"
        remedy = "let the loader itself take fewer"
        raise CurvescopeError(
            f"--samples {samples}", rule, given=type(data).__name__, remedy=remedy
        )
    X, y = pair
    if samples >= len(y):
        return X, y
    chosen = torch.randperm(len(y), generator=generator)[:samples].sort().values
    return X[chosen.to(X.device)], y[chosen.to(y.device)]


def usual_batch_size(data: Any) -> int:
    """500 samples at a time; of text, where labels stand at many positions, 4,096 positions.

    >>> usual_batch_size((torch.eye(3), torch.arange(3)))
    500
    >>> usual_batch_size((torch.eye(128).long(), torch.eye(128).long()))
    32
    """
    _, y = getattr(data, "tensors", data)
    if not isinstance(y, Tensor) or y.is_floating_point() or not y.numel():
        return _SAMPLES
    return max(1, min(_SAMPLES, _POSITIONS // y[0].numel()))


def choose_device(name: str) -> torch.device:
    """A device by its name; ``auto`` is the first GPU, or the CPU where there is none.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        rule = f"cannot be used ({reason})"
        raise CurvescopeError(f"--device {name!r}", rule, remedy="use auto or cpu") from None
    return device


# The user's code ------------------------------------------------------------------------


def _find(where: str, text: str) -> Any:
    """The object that ``module:name`` or ``file.py:name`` stands for."""
    place, _, name = text.rpartition(":")
    try:
        with _alone(place):
            module = _module(place)
    except CurvescopeError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        absent = isinstance(error, ModuleNotFoundError | FileNotFoundError)
        remedy = "run from the folder it lies in" if absent else None
        rule = f"{place!r} cannot be imported ({reason})"
        raise CurvescopeError(where, rule, remedy=remedy) from error
    value = module
    for part in name.split("."):
        value = getattr(value, part, None)
        if value is None:
            raise CurvescopeError(where, f"{place!r} has no {name!r}")
    return value


@contextmanager
def _alone(place: str) -> Iterator[None]:
    """Hide curvescope's arguments, which a parser in the user's code would read."""
    ours, sys.argv = sys.argv, [place]
    try:
        yield
    finally:
        sys.argv = ours


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    name = module_name(place)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CurvescopeError(repr(place), "there is no such file")
    source = path.read_bytes()
    loaded = sys.modules.get(name)
    if loaded is not None and vars(loaded).get(_SOURCE, source) == source:
        return loaded
    module = importlib.util.module_from_spec(spec)
    vars(module)[_SOURCE] = source
    sys.modules[name] = module  # pickle and inspect look for the code of a class there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def module_name(place: str) -> str:
    """The name in ``sys.modules`` of ``package.module`` or of the module from ``file.py``.

    That of a file is its stem, unless ``import`` would find another module under this name: a
    user's ``random.py`` must not be mistaken for the standard library's, nor replace it. The
    name has the path in it only if need be, since it is part of the identity of the functions.

    >>> module_name("package.module"), module_name("folder/calendar.py")
    ('package.module', 'file:calendar')
    """
    if not place.endswith(".py"):
        return place
    path = Path(place).resolve()
    with suppress(ValueError):  # of a module without a specification, such as __main__
        spec = importlib.util.find_spec(path.stem)
        if spec is None or (spec.origin and Path(spec.origin).resolve() == path):
            return path.stem
    name = f"file:{path.stem}"
    if getattr(sys.modules.get(name), "__file__", str(path)) != str(path):
        name += f":{checksum(str(path).encode())[:12]}"
    return name


def _call(where: str, function: Any, **arguments: Any) -> Any:
    if not callable(function):
        raise CurvescopeError(where, "must be a function", given=type(function).__name__)
    try:
        with _alone(where):
            return function(**arguments)
    except CurvescopeError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        rule = f"failed when called ({reason})"
        raise CurvescopeError(where, rule, remedy="it is called without arguments") from error


# Arrays ---------------------------------------------------------------------------------


def _arrays(where: str, path: Path) -> Splits:
    if not path.exists():
        raise CurvescopeError(where, "there is no such file")
    arrays = io.read_arrays(path, where, ("X", "y", "X_test", "y_test"))
    train = _pair(where, arrays, "")
    if train is None:
        there = ", ".join(io.array_headers(path, where)) or "none"
        raise CurvescopeError(where, "needs the arrays X and y", given=there)
    return Splits(train, _pair(where, arrays, "_test"), path.name)


def _pair(where: str, arrays: Mapping[str, Any], ending: str) -> tuple[Tensor, Tensor] | None:
    if f"X{ending}" not in arrays or f"y{ending}" not in arrays:
        return None
    X, y = arrays[f"X{ending}"], arrays[f"y{ending}"]
    if X.dtype.kind != "f" and X.dtype != np.int64:
        rule = f"X{ending} must be floating point (or int64 tokens)"
        remedy = "scale it as the model expects it and save it again"
        raise CurvescopeError(where, rule, given=X.dtype, remedy=remedy)
    if X.ndim < 1 or y.ndim < 1 or len(X) != len(y) or len(X) == 0:
        rule = f"X{ending} and y{ending} must have the same number of rows, at least one"
        raise CurvescopeError(where, rule, given=f"{X.shape} and {y.shape}")
    if y.dtype.kind not in "fiub":
        rule = f"y{ending} must be numbers, classes from 0 on or real targets"
        remedy = "number the classes and save it again"
        raise CurvescopeError(where, rule, given=y.dtype, remedy=remedy)
    targets = torch.from_numpy(y if y.dtype.kind == "f" else y.astype(np.int64))
    return torch.from_numpy(X), targets
