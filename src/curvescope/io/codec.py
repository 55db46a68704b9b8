"""Frozen dataclasses as plain JSON and tensors, and back, by what their annotations say.

=========================== ====================================================================
annotation                  stored as
=========================== ====================================================================
``int``, ``str``, ``bool``  itself; ``True`` is no integer
``float``                   a finite number; ``AnyFloat``: also ``NaN`` and ``Infinity``
``X | None``                ``null``, or an ``X``
``Enum``, ``Literal``       the value; of an ``Enum``, that of the member
``tuple``, ``list``, …      an array; ``tuple[X, Y]`` has its length
``Mapping[str, X]``         an object
a dataclass                 an object with a name for each field, no more and no fewer
``Tensor``                  its type, shape and checksum; the numbers go apart, by the field's path
``Any``                     plain JSON as it is
=========================== ====================================================================

What does not fit is refused with its path, by :func:`encode` as by :func:`decode`: nothing is
written that could not be read.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from curvescope._checks import NOT_FINITE, AnyFloat
from curvescope.errors import CurvescopeError
from curvescope.io.checksum import checksum

T = TypeVar("T")
_MANY, _ANY_MANY = tuple[float, ...], tuple[AnyFloat, ...]
_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


class Misfit(CurvescopeError):
    """A value is not what its annotation says; the message names its path."""


def _misfit(at: str, kind: str, given: Any) -> Misfit:
    place = f"{at!r} " if at else ""
    return Misfit("codec", f"{place}must be {kind}", given=reprlib.repr(given))


def encode(value: Any, kind: Any = None) -> tuple[Any, dict[str, Tensor]]:
    """A dataclass as plain JSON, and its tensors by their paths.

    Args:
        value: A frozen dataclass.
        kind: Its type, where that has parameters: ``Estimate[float]``.

    Raises:
        CurvescopeError: If a field is not what its annotation says.

    >>> import dataclasses, torch
    >>> @dataclasses.dataclass(frozen=True)
    ... class Pair:
    ...     residual: float
    ...     vector: Tensor
    >>> plain, tensors = encode(Pair(0.5, torch.ones(3)))
    >>> plain["residual"], plain["vector"]["shape"], tensors
    (0.5, [3], {'vector': tensor([1., 1., 1.])})
    >>> decode(Pair, {**plain, "residual": "small"}, tensors)
    Traceback (most recent call last):
    curvescope.io.codec.Misfit: codec: 'residual' must be a number, got 'small'
    """
    tensors: dict[str, Tensor] = {}
    return _write(type(value) if kind is None else kind, value, "", tensors), tensors


def decode(kind: type[T], plain: Any, tensors: Mapping[str, Tensor] | None = None) -> T:
    """The dataclass that :func:`encode` was called on.

    Args:
        kind: The dataclass, with its parameters where it has any.
        plain: The JSON part.
        tensors: The tensors; each must be used.

    Raises:
        CurvescopeError: If something is missing, unknown, of another type, shape or checksum.
    """
    left = dict(tensors or {})
    value = _read(kind, plain, "", left)
    for name in left:
        raise _misfit(name, "a tensor of this value", left[name].shape)
    return value


def readable(value: Any, kind: Any = None) -> Any:
    """A dataclass as plain JSON for readers: vectors in full, larger tensors by their shape.

    >>> import dataclasses, torch
    >>> @dataclasses.dataclass(frozen=True)
    ... class Spectrum:
    ...     values: Tensor
    >>> readable(Spectrum(torch.arange(3)))
    {'values': [0, 1, 2]}
    """
    plain, tensors = encode(value, kind)

    def shortened(plain: Any, at: str) -> Any:
        if at in tensors and tensors[at].ndim < 2:
            return tensors[at].tolist()
        if isinstance(plain, dict):
            return {name: shortened(each, _under(at, name)) for name, each in plain.items()}
        if isinstance(plain, list):
            return [shortened(each, _under(at, i)) for i, each in enumerate(plain)]
        return plain

    return shortened(plain, "")


# Encoding and decoding ------------------------------------------------------------------------


def _write(kind: Any, value: Any, at: str, tensors: dict[str, Tensor], finite: bool = True) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _write(arguments[0], value, at, tensors, finite and NOT_FINITE not in arguments)
    if kind is Any:
        return _plain(value, at)
    if kind is Tensor:
        return _put(value, at, tensors)
    if kind in _WORDS:
        return _primitive(kind, value, at, finite)
    if origin in (Union, UnionType):
        return None if value is None else _write(_present(kind), value, at, tensors, finite)
    if origin is Literal or _is_enum(kind):
        return _choice(kind, value.value if isinstance(value, Enum) else value, at, encoded=True)
    if (numbers := _numbers(kind, value, finite)) is not None:
        return numbers
    if (items := _items(kind, value, at)) is not None:
        return [_write(k, v, _under(at, i), tensors, finite) for i, (k, v) in enumerate(items)]
    if (entry := _mapping(kind)) is not None:
        return {
            name: _write(entry, each, _under(at, name), tensors, finite)
            for name, each in _named(value, at).items()
        }
    cls = origin or kind
    if type(value) is not cls:
        raise _misfit(at, f"a {cls.__name__}", value)
    return {
        name: _write(each, getattr(value, name), _under(at, name), tensors)
        for name, each in fields_of(kind).items()
    }


def _read(kind: Any, plain: Any, at: str, left: dict[str, Tensor], finite: bool = True) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _read(arguments[0], plain, at, left, finite and NOT_FINITE not in arguments)
    if kind is Any:
        return _plain(plain, at)
    if kind is Tensor:
        return _take(plain, at, left)
    if kind in _WORDS:
        return _primitive(kind, plain, at, finite)
    if origin in (Union, UnionType):
        return None if plain is None else _read(_present(kind), plain, at, left, finite)
    if origin is Literal or _is_enum(kind):
        return _choice(kind, plain, at)
    if (numbers := _numbers(kind, plain, finite)) is not None:
        return tuple(numbers)
    if (items := _items(kind, plain, at, stored=True)) is not None:
        items_read = [_read(k, v, _under(at, i), left, finite) for i, (k, v) in enumerate(items)]
        return items_read if origin is list else tuple(items_read)
    if (entry := _mapping(kind)) is not None:
        return {
            name: _read(entry, each, _under(at, name), left, finite)
            for name, each in _named(plain, at).items()
        }
    return _dataclass(kind, plain, at, left)


def _dataclass(kind: Any, plain: Any, at: str, left: dict[str, Tensor]) -> Any:
    annotations, entries = fields_of(kind), _named(plain, at)
    cls = get_origin(kind) or kind
    for name in annotations.keys() - entries.keys():
        raise _misfit(at, f"a {cls.__name__} with {name!r}", sorted(entries))
    for name in entries.keys() - annotations.keys():
        raise _misfit(at, f"a {cls.__name__}, which has no {name!r}", entries[name])
    values = {
        name: _read(each, entries[name], _under(at, name), left)
        for name, each in annotations.items()
    }
    try:
        return cls(**values)
    except (ValueError, TypeError, OverflowError) as error:  # a rule of the class itself
        raise _misfit(at, f"a {cls.__name__} that keeps its rules ({error})", plain) from None


# One kind of value at a time ------------------------------------------------------------------


def _primitive(kind: type, value: Any, at: str, finite: bool) -> Any:
    if kind is float and type(value) in (int, float):
        try:
            value = float(value)
        except OverflowError:
            raise _misfit(at, "a number that a float holds", value) from None
        if finite and not math.isfinite(value):
            raise _misfit(at, "a finite number", value)
    if type(value) is not kind:
        raise _misfit(at, _WORDS[kind], value)
    return value


def _choice(kind: Any, value: Any, at: str, *, encoded: bool = False) -> Any:
    choices = get_args(kind) if get_origin(kind) is Literal else [m.value for m in kind]
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise _misfit(at, f"one of {', '.join(map(repr, choices))}", value)
    return value if encoded or get_origin(kind) is Literal else kind(value)


def _numbers(kind: Any, value: Any, finite: bool) -> list[float] | None:
    """The entries of a sound ``tuple[float, ...]``, which are many; None for anything else."""
    if kind not in (_MANY, _ANY_MANY) or type(value) not in (list, tuple):
        return None
    if not {int, float}.issuperset(map(type, value)):
        return None
    try:
        numbers = list(map(float, value))
    except OverflowError:
        return None
    sound = kind == _ANY_MANY or not finite or all(map(math.isfinite, numbers))
    return numbers if sound else None


def _items(kind: Any, value: Any, at: str, *, stored: bool = False) -> list[tuple[Any, Any]] | None:
    """The entries of an array with their annotations; None where the kind is no array."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin not in (tuple, list, Sequence):
        return None
    if not isinstance(value, list if stored else list | tuple):
        raise _misfit(at, "an array", value)
    if origin is tuple and arguments[-1:] != (...,):
        if len(value) != len(arguments):
            raise _misfit(at, f"an array of {len(arguments)}", value)
        return list(zip(arguments, value, strict=True))
    return [(arguments[0], entry) for entry in value]


def _mapping(kind: Any) -> Any:
    """The annotation of an object's entries; None where the kind is no object."""
    if get_origin(kind) not in (dict, Mapping):
        return None
    return get_args(kind)[1]


def _named(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(type(name) is str for name in value):
        raise _misfit(at, "an object", value)
    return value


def _plain(value: Any, at: str) -> Any:
    """JSON as it is, with arrays for tuples; its numbers may be infinite or NaN."""
    if value is None or type(value) in (int, str, bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(entry, _under(at, i)) for i, entry in enumerate(value)]
    if isinstance(value, Mapping):
        named = _named(value, at)
        return {name: _plain(entry, _under(at, name)) for name, entry in named.items()}
    return _primitive(float, value, at, finite=False)


def _put(value: Any, at: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if not isinstance(value, Tensor) or at in tensors:
        raise _misfit(at, "a tensor with a path of its own", value)
    tensors[at] = value.detach().cpu().contiguous()
    return _described(tensors[at])


def _take(plain: Any, at: str, left: dict[str, Tensor]) -> Tensor:
    if at not in left:
        raise _misfit(at, "among the tensors beside the file", sorted(left))
    tensor = left.pop(at)
    if plain != _described(tensor):
        raise _misfit(at, "the tensor that was stored with it", _described(tensor))
    return tensor


def _described(tensor: Tensor) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "checksum": checksum({"": tensor}),
    }


# Annotations ------------------------------------------------------------------------------------


@cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass with their annotations, its parameters put in."""
    cls = get_origin(kind) or kind
    if not is_dataclass(cls):
        raise TypeError(
            f"codec: there is no form for {kind!r}; use numbers, texts, tensors and dataclasses"
        )
    hints = get_type_hints(cls, include_extras=True)
    arguments = dict(zip(getattr(cls, "__parameters__", ()), get_args(kind), strict=True))
    return {
        field.name: _filled(hints[field.name], arguments) for field in fields(cls) if field.init
    }


@cache
def holds_tensors(kind: Any) -> bool:
    """Whether a value of this kind may have a tensor somewhere."""
    looked_at: set[Any] = set()
    left = [kind]
    while left:
        each = left.pop()
        if each is Tensor:
            return True
        if each not in looked_at:
            looked_at.add(each)
            left += get_args(each)
            if is_dataclass(get_origin(each) or each):
                left += fields_of(each).values()
    return False


def _filled(annotation: Any, arguments: Mapping[Any, Any]) -> Any:
    if isinstance(annotation, TypeVar):
        return arguments[annotation]
    open_ones = getattr(annotation, "__parameters__", ())
    return annotation[tuple(arguments[each] for each in open_ones)] if open_ones else annotation


def _present(kind: Any) -> Any:
    """``X`` of ``X | None``."""
    others = [member for member in get_args(kind) if member is not NoneType]
    if len(others) != 1 or len(others) == len(get_args(kind)):
        raise TypeError(f"codec: there is no form for {kind!r}; of a union only X | None is stored")
    return others[0]


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _under(at: str, name: str | int) -> str:
    return f"{at}.{name}" if at else str(name)
