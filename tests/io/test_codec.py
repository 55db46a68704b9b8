"""Dataclasses as JSON and tensors: they come back as they were, and nothing else passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, nan
from typing import Any, Generic, Literal, TypeVar

import pytest
import torch
from torch import Tensor

from curvescope import io
from curvescope._checks import AnyFloat
from curvescope.errors import CurvescopeError

T = TypeVar("T")


class Color(str, Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner(Generic[T]):
    value: T
    error: AnyFloat = 0.0


@dataclass(frozen=True)
class Everything:
    n: int
    x: float
    text: str
    flag: bool
    color: Color
    kind: Literal["line", "points"]
    pair: tuple[int, str]
    row: tuple[float, ...]
    rows: Sequence[tuple[float, ...]]
    maybe: float | None
    table: Mapping[str, Inner[float]]
    exact: Inner[Tensor] | None
    free: Mapping[str, Any]
    matrix: Tensor

    def __post_init__(self) -> None:
        if self.n < 0:
            msg = f"n must not be negative, got {self.n}"
            raise ValueError(msg)


def everything() -> Everything:
    return Everything(
        n=3,
        x=0.1,
        text="λ",
        flag=True,
        color=Color.BLUE,
        kind="line",
        pair=(1, "a"),
        row=(1.0, 2.5),
        rows=((1.0,), ()),
        maybe=None,
        table={"H": Inner(2.0, inf)},
        exact=Inner(torch.arange(3)),
        free={"a": [1, {"b": None}], "c": "text"},
        matrix=torch.eye(2, dtype=torch.float64),
    )


def test_everything_comes_back_as_it_was() -> None:
    plain, tensors = io.encode(everything())
    back = io.decode(Everything, plain, tensors)
    assert sorted(tensors) == ["exact.value", "matrix"]
    assert torch.equal(back.matrix, everything().matrix)
    assert back.exact is not None
    assert torch.equal(back.exact.value, torch.arange(3))
    same = {"matrix": torch.ones(()), "exact": None}
    assert replace(back, **same) == replace(everything(), **same)
    assert type(back.color) is Color
    assert io.encode(back)[0] == plain


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("n", True, "'n' must be an integer, got True"),
        ("n", 3.0, "'n' must be an integer, got 3.0"),
        ("n", -1, r"that keeps its rules .n must not be negative, got -1"),
        ("x", "0.1", "'x' must be a number, got '0.1'"),
        ("x", True, "'x' must be a number, got True"),
        ("x", nan, "'x' must be a finite number, got nan"),
        ("x", 10**400, "'x' must be a number that a float holds, got 1000"),
        ("text", 5, "'text' must be a text, got 5"),
        ("flag", 1, "'flag' must be true or false, got 1"),
        ("color", "green", "'color' must be one of 'red', 'blue', got 'green'"),
        ("color", ["red"], "'color' must be one of"),
        ("kind", "bars", "'kind' must be one of 'line', 'points', got 'bars'"),
        ("pair", [1], "'pair' must be an array of 2"),
        ("pair", "ab", "'pair' must be an array, got 'ab'"),
        ("row", [1.0, None], "'row.1' must be a number, got None"),
        ("rows", {"0": []}, "'rows' must be an array, got"),
        ("maybe", [], "'maybe' must be a number, got"),
        ("table", [], "'table' must be an object, got"),
        ("table", {"H": {"value": 1.0}}, "'table.H' must be a Inner with 'error'"),
        ("table", {"H": {"value": inf, "error": inf}}, "'table.H.value' must be a finite number"),
        ("table", {"H": {"value": 1.0, "error": 0.0, "x": 1}}, "Inner, which has no 'x'"),
        ("free", [], "'free' must be an object"),
        ("matrix", [[1.0]], "'matrix' must be the tensor that was stored with it"),
        ("exact", None, "'exact.value' must be a tensor of this value"),
    ],
)
def test_what_does_not_fit_its_annotation_is_refused(field: str, value: Any, words: str) -> None:
    plain, tensors = io.encode(everything())
    with pytest.raises(CurvescopeError, match=words):
        io.decode(Everything, {**plain, field: value}, tensors)


def test_missing_and_unknown_fields_are_refused_even_where_there_is_a_default() -> None:
    with pytest.raises(CurvescopeError, match="must be a Inner with 'error'"):
        io.decode(Inner[float], {"value": 1.0})
    with pytest.raises(CurvescopeError, match="which has no 'more'"):
        io.decode(Inner[float], {"value": 1.0, "error": 0.0, "more": 1})


@pytest.mark.parametrize(
    "swap",
    [
        {"matrix": torch.eye(2)},
        {"matrix": torch.eye(2, dtype=torch.float64).reshape(4)},
        {"matrix": 2 * torch.eye(2, dtype=torch.float64)},
        {"exact.value": torch.arange(3).int()},
    ],
)
def test_tensors_of_another_type_shape_or_content_are_refused(swap: dict[str, Tensor]) -> None:
    plain, tensors = io.encode(everything())
    with pytest.raises(CurvescopeError, match="must be the tensor that was stored with it"):
        io.decode(Everything, plain, {**tensors, **swap})


def test_swapped_missing_and_surplus_tensors_are_refused() -> None:
    @dataclass(frozen=True)
    class Two:
        a: Tensor
        b: Tensor

    plain, tensors = io.encode(Two(torch.zeros(2), torch.ones(2)), Two)
    with pytest.raises(CurvescopeError, match="'a' must be the tensor that was stored with it"):
        io.decode(Two, plain, {"a": tensors["b"], "b": tensors["a"]})
    with pytest.raises(CurvescopeError, match="'b' must be among the tensors beside the file"):
        io.decode(Two, plain, {"a": tensors["a"]})
    with pytest.raises(CurvescopeError, match="'c' must be a tensor of this value"):
        io.decode(Two, plain, {**tensors, "c": torch.ones(1)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": nan}, "'x' must be a finite number"),
        ({"n": 2.5}, "'n' must be an integer"),
        ({"color": "red"}, None),  # a member by its value is the member
        ({"table": {"H": 1.0}}, "'table.H' must be a Inner, got 1.0"),
        ({"matrix": None}, "'matrix' must be a tensor"),
        ({"free": {"a": {1, 2}}}, "'free.a' must be a number"),
        ({"free": {1: "a"}}, "'free' must be an object"),
    ],
)
def test_what_could_not_be_read_is_not_written(change: dict[str, Any], words: str | None) -> None:
    value = replace(everything(), **change)
    if words is None:
        assert io.decode(Everything, *io.encode(value)).color is Color.RED
        return
    with pytest.raises(CurvescopeError, match=words):
        io.encode(value)


def test_a_union_of_more_than_one_type_has_no_form() -> None:
    @dataclass(frozen=True)
    class Either:
        value: int | str

    with pytest.raises(TypeError, match=r"of a union only X \| None is stored"):
        io.encode(Either(1))
