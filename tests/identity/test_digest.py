"""Digests: equal for equal things, different for all that can be told apart."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from argparse import Namespace
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import curvescope.identity
from curvescope import CurvescopeError
from curvescope.identity import checksum, code_digest, digest, file_digest


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


@dataclass(frozen=True)
class OtherPoint:
    x: float
    y: float = 0.0


class Plain:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: float) -> float:
        return self.factor * x


class Named:
    def __init__(self, identity: str) -> None:
        self.identity = identity


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scaled(factor: Any) -> Callable[[Any], Any]:
    return lambda x: factor * x


def defaulting(factor: float) -> Callable[..., float]:
    def call(x: float, by: float = factor) -> float:
        return x * by

    return call


def outer(factor: float) -> Callable[[float], float]:
    inner = scaled(factor)
    return lambda x: inner(x)


def network(seed: int = 0, activation: type[nn.Module] = nn.ReLU, **norm: Any) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), activation(), nn.BatchNorm1d(4, **norm), nn.Linear(4, 2))


def tied(*, together: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    weight = torch.eye(2)
    model[0].weight = nn.Parameter(weight)
    model[1].weight = model[0].weight if together else nn.Parameter(weight.clone())
    return model


def hooked(factor: float) -> nn.Module:
    model = network()
    model.register_forward_hook(lambda module, inputs, output: factor * output)
    return model


def hooked_backward(factor: float) -> nn.Module:
    model = network()
    model.handle = model.register_full_backward_hook(lambda module, before, after: (factor,))
    return model


def having(**attributes: object) -> nn.Module:
    model = network()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


class Slots:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Attributes(dict[str, float]):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor


class Wrapping:
    def __init__(self, factor: float) -> None:
        functools.update_wrapper(self, F.mse_loss)
        self.factor = factor

    def __call__(self, z: Any, y: Any) -> Any:
        return self.factor * F.mse_loss(z, y)


First = namedtuple("First", "x")
Second = namedtuple("Second", "x")


def with_class(define: Callable[[Any], dict[str, object]]) -> tuple[nn.Module, nn.Module]:
    """Objects of two classes of one name, whose definitions know 2 and 3."""
    one, two = (type("Layer", (nn.Module,), {"__module__": "script", **define(c)}) for c in (2, 3))
    return one(), two()


def differentiating(factor: float) -> Callable[[Any, Any], Any]:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Any) -> Any:
            return factor * z

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return factor * gradient

    return lambda z, y: Scaled.apply(z).sum()


ZERO, ONE = torch.zeros(2), torch.ones(2)

DIFFERENT: dict[str, tuple[object, object]] = {
    "where a text ends": (("ab", "c"), ("a", "bc")),
    "where a list ends": ([[1], [2]], [[1, 2]]),
    "number and text": (1, "1"),
    "number and truth": (1, True),
    "integer and float": (1, 1.0),
    "text and bytes": ("a", b"a"),
    "nothing and its name": (None, "None"),
    "tuple and list": ((1,), [1]),
    "sign of zero": (0.0, -0.0),
    "last bit of a float": (1.0, float(np.nextafter(1.0, 2.0))),
    "keys and values": ({"a": "b"}, {"b": "a"}),
    "values exchanged": ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
    "enum and its value": (Color.RED, "red"),
    "dtype and its name": (torch.float32, "torch.float32"),
    "dtypes": (torch.zeros(2, dtype=torch.int32), torch.zeros(2)),
    "bytes of one double, two floats": (torch.zeros(1, dtype=torch.float64), ZERO),
    "shapes": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "sign of zero in a tensor": (ZERO, -ZERO),
    "tensor and array": (ZERO, ZERO.numpy()),
    "byte orders": (np.zeros(2, dtype="<i4"), np.zeros(2, dtype=">i4")),
    "seeds": (seeded(0), seeded(1)),
    "dataclasses with equal fields": (Point(1.0), OtherPoint(1.0)),
    "fields of a dataclass": (Point(1.0, 0.0), Point(0.0, 1.0)),
    "attributes of an object": (Plain(1.0), Plain(2.0)),
    "given identities": (Named("a"), Named("b")),
    "lambdas on one line": ((lambda x: x), (lambda x: -x)),
    "constants in code": ((lambda x: x + 1), (lambda x: x + 2)),
    "names in code": ((lambda x: x.sin()), (lambda x: x.cos())),
    "captured numbers": (scaled(2), scaled(3)),
    "captured tensors": (scaled(ZERO), scaled(ONE)),
    "captured functions": (outer(2), outer(3)),
    "defaults": (defaulting(2), defaulting(3)),
    "arguments of a partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "keywords of a partial": (
        functools.partial(F.cross_entropy, label_smoothing=0.1),
        functools.partial(F.cross_entropy, label_smoothing=0.2),
    ),
    "methods of other objects": (Plain(1.0).__call__, Plain(2.0).__call__),
    "functions of a library": (F.cross_entropy, F.nll_loss),
    "functions in C": (torch.sin, torch.cos),
    "settings of a module": (nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0)),
    "weights": (network(0), network(1)),
    "kinds of modules": (network(0), network(0, nn.Tanh)),
    "attributes of a module": (network(eps=1e-5), network(eps=1e-3)),
    "hooks of a module": (hooked(1.0), hooked(2.0)),
    "backward hooks of a module": (hooked_backward(1.0), hooked_backward(2.0)),
    "tied weights and equal ones": (tied(together=True), tied(together=False)),
    "private attributes": (having(_factor=2.0), having(_factor=3.0)),
    "settings in a namespace": (having(args=Namespace(x=2)), having(args=Namespace(x=3))),
    "ranges": (having(part=range(2)), having(part=range(3))),
    "slices": (having(part=slice(2)), having(part=slice(3))),
    "queues": (having(past=deque([2])), having(past=deque([3]))),
    "slots": (having(settings=Slots(2.0)), having(settings=Slots(3.0))),
    "beside what is not known": (having(all=[Lock(), 2]), having(all=[Lock(), 3])),
    "sparse attributes": (
        having(graph=torch.eye(2).to_sparse()), having(graph=2 * torch.eye(2).to_sparse()),
    ),
    "constants of a class": with_class(lambda c: {"factor": c}),
    "static methods": with_class(lambda c: {"scale": staticmethod(scaled(c))}),
    "class methods": with_class(lambda c: {"scale": classmethod(outer(c))}),
    "properties": with_class(lambda c: {"factor": property(scaled(c))}),
    "functions with a derivative": (differentiating(2.0), differentiating(3.0)),
    "named tuples": (First(1), Second(1)),
    "attributes of a mapping": (Attributes(2.0), Attributes(3.0)),
    "objects that wrap one function": (Wrapping(2.0), Wrapping(3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_things_have_different_digests(name: str) -> None:
    a, b = DIFFERENT[name]
    assert digest(a) != digest(b)


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return nn.LSTM(2, 3)


SAME: dict[str, tuple[object, object]] = {
    "order of a mapping": ({"a": 1, "b": (2, 3)}, {"b": (2, 3), "a": 1}),
    "order of a set": ({"a", "b", "c", "d"}, {"d", "c", "b", "a"}),
    "not a number": (float("nan"), float("nan")),
    "memory of a tensor": (
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T.contiguous().T,
    ),
    "parameter": (ZERO, nn.Parameter(ZERO.clone())),
    "equal lambdas": (scaled(2), scaled(2)),
    "equal partials": (functools.partial(max, 1), functools.partial(max, 1)),
    "equal modules": (network(0), network(0)),
    "equal modules with hooks": (hooked_backward(1.0), hooked_backward(1.0)),
    "equal modules with locks": (having(all=[Lock(), 2]), having(all=[Lock(), 2])),
    "equal recurrent modules": (recurrent(), recurrent()),
    "equal wrapping objects": (Wrapping(2.0), Wrapping(2.0)),
    "mode of a module": (network(0).train(), network(0).eval()),
    "generators in one state": (seeded(0), seeded(0)),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_things_have_one_digest(name: str) -> None:
    a, b = SAME[name]
    assert digest(a) == digest(b)


def test_values_of_globals_belong_to_a_function() -> None:
    source = "LAMBDA = {}\ndef loss(z, y): return LAMBDA * (z - y)"
    digests = []
    for value in (0.1, 0.2, 0.1):
        scope: dict[str, Any] = {"__name__": "script"}
        exec(source.format(value), scope)
        digests.append(digest(scope["loss"]))
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize("use", ["module.LAMBDA", "module.scaled()", "module.part.LAMBDA"])
def test_what_is_used_of_a_users_module_belongs_to_a_function(use: str) -> None:
    digests = []
    for value in (0.1, 0.2, 0.1):
        module, part = ModuleType("helpers"), ModuleType("helpers.part")
        exec(f"LAMBDA = {value}\ndef scaled(): return {value}", vars(module))
        exec(f"LAMBDA = {value}", vars(part))
        vars(part)["above"], vars(module)["part"] = module, part
        scope: dict[str, Any] = {"__name__": "script", "module": module}
        exec(f"def loss(z, y): return {use} * (z - y)", scope)
        digests.append(digest(scope["loss"]))
    assert digests[0] == digests[2] != digests[1]


def test_a_deep_attribute_is_no_error() -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    assert digest(having(deep=deep)) == digest(having(deep=deep))


def test_code_of_a_users_class_belongs_to_its_objects() -> None:
    source = "class Model(Base):\n    def forward(self, x): return x.{}()"
    digests = []
    for name in ("sin", "cos", "sin"):
        scope: dict[str, Any] = {"__name__": "script", "Base": nn.Module}
        exec(source.format(name), scope)
        digests.append(digest(scope["Model"]()))
    assert digests[0] == digests[2] != digests[1]


def test_code_that_refers_to_itself_and_to_much_else_is_finite() -> None:
    lines = [f"def f{i}(x): return f{i - 1}(x) + f{i - 2}(x) + f{i}(x)" for i in range(2, 60)]
    scope: dict[str, Any] = {"__name__": "script", "f0": abs, "f1": abs}
    exec("\n".join(lines), scope)
    assert digest(scope["f59"]) != digest(scope["f58"])


def test_objects_inside_themselves_are_finite() -> None:
    knot: list[Any] = [1]
    knot.append(knot)
    assert digest(knot) != digest([1, [1]])


SCRIPT = """
import functools, torch
from curvescope.identity import digest
def scaled(factor):
    return lambda x: factor * abs(x)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
things = {"b", "a", "c"}, {"x": 1.5, "y": None}, scaled(2), functools.partial(scaled, 3), model
print(digest(*things))
"""


def test_another_process_finds_the_same_digest() -> None:
    printed = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", SCRIPT]
        printed.add(subprocess.run(run, capture_output=True, env=environment, check=True).stdout)
    assert len(printed) == 1


@pytest.mark.parametrize(
    "thing",
    [object(), iter([1]), (x for x in ()), np.array([object()]), Path("a"), [Path("a")]],
    ids=["object", "iterator", "generator", "objects", "path", "in a list"],
)
def test_what_is_not_known_is_refused(thing: object) -> None:
    with pytest.raises(CurvescopeError, match=r"^identity: .* has no identity; "):
        digest(thing)


def test_sparse_tensors_and_those_without_numbers_are_refused() -> None:
    for tensor in (torch.eye(2).to_sparse(), torch.zeros(2, device="meta")):
        with pytest.raises(CurvescopeError, match="has no identity"):
            digest(tensor)


# Files --------------------------------------------------------------------------------------------


def test_the_checksum_of_a_file_is_that_of_its_contents(tmp_path: Path) -> None:
    raw = bytes(range(256)) * 9000
    (tmp_path / "file").write_bytes(raw)
    assert file_digest(tmp_path / "file") == checksum(raw)
    assert file_digest(tmp_path / "file", "md5") == checksum(raw, "md5")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_pipes_and_devices_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CurvescopeError, match="is not a regular file"):
            file_digest(path)
    with pytest.raises(CurvescopeError, match=r"is not a regular file|cannot be read"):
        file_digest(tmp_path)
    with pytest.raises(CurvescopeError, match="cannot be read"):
        file_digest(tmp_path / "missing")


def test_code_is_known_by_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "drawn"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "deep" / "page.css").write_text("a")
    monkeypatch.syspath_prepend(tmp_path)
    import drawn  # type: ignore[import-not-found]

    before = code_digest(drawn)
    (package / "deep" / "page.css").write_text("b")
    assert code_digest(drawn) != before
    assert code_digest(curvescope.identity) != before
