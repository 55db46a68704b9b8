"""JSON and TOML, read strictly: one meaning for every text, and a limit to what a text may ask for.

Numbers that are not finite are written as ``NaN`` and ``Infinity``, which Python reads back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from curvescope.errors import CurvescopeError
from curvescope.io.files import LARGEST, PathLike, atomic, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same parser under the name that it had before it entered the standard library
    import tomli as tomllib

_DEEPEST = 64
_DIGITS = 40
_NESTED = (dict, list)


def write_json(path: PathLike, obj: Any) -> None:
    """Write ``obj`` as indented JSON; dataclasses become objects, tuples become arrays.

    Raises:
        CurvescopeError: If something in ``obj`` has no JSON form; nothing is written then.

    >>> import tempfile, pathlib
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "result.json"
    >>> write_json(place, {"trace": 1.5, "shape": (2, 3)})
    >>> read_json(place)
    {'trace': 1.5, 'shape': [2, 3]}
    """
    text = json_text(path, obj)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(path: PathLike, obj: Any) -> str:
    """The text that :func:`write_json` writes; ``path`` is named in errors."""
    return encoded(path, obj, indent=2) + "\n"


def encoded(path: PathLike, obj: Any, *, indent: int | None) -> str:
    """``obj`` as JSON; ``path`` is named in errors."""
    try:
        return json.dumps(obj, indent=indent, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        remedy = "convert it to numbers, texts, lists and dicts"
        raise CurvescopeError(f"write_json({str(path)!r})", str(error), remedy=remedy) from None


def canonical(plain: Any) -> bytes:
    """The bytes that a checksum of plain JSON is taken of: they do not depend on the layout.

    The order of names counts, since readers show them in this order.

    >>> canonical({"b": [1, 2.5], "a": None})
    b'{"b":[1,2.5],"a":null}'
    """
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def read_json(path: PathLike, *, largest: int = LARGEST, links: bool = True) -> Any:
    """The contents of a JSON file.

    Args:
        path: The file.
        largest: A longer file is refused before it is read.
        links: Whether the file may be a symbolic link.

    Raises:
        CurvescopeError: If the file is missing, cannot be read, is not JSON, or is JSON of more
            than one meaning; see :func:`parse_json`.
    """
    return parse_json(read_bytes(path, largest=largest, links=links), str(path))


def read_json_lines(path: PathLike, *, until: int | None = None) -> list[Any]:
    """The objects of a file of JSON lines; a last line without its end is left out as torn.

    Args:
        path: The file.
        until: How many lines to read; all by default.

    Raises:
        CurvescopeError: If the file is missing, or a complete line is not JSON.
    """
    *lines, _ = read_bytes(path).split(b"\n")
    return [parse_json(line, str(path), what="a line") for line in lines[:until]]


def parse_json(text: str | bytes, place: str, *, what: str = "") -> Any:
    r"""Parse a JSON text.

    Args:
        text: The text, in UTF-8 if it is given as bytes.
        place: Where it comes from, for errors.
        what: Which part of that it is.

    Raises:
        CurvescopeError: If it is not JSON, or has a name twice in one object, a number that no
            float holds or of more than forty digits, more than 64 levels, or half of a character.

    >>> parse_json('{"a": 1, "a": 2}', "result.json")
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: 'result.json': is not JSON ('a' stands there twice); ...
    """
    rule = f"{what} is not JSON".lstrip()
    remedy = "the file is damaged or foreign"
    try:
        raw = text.encode() if isinstance(text, str) else text
        value = json.loads(raw, object_pairs_hook=_once, **(_CAREFUL if _ODD.search(raw) else {}))
        _check_depth(value)
        if b"\\u" in raw:
            canonical(value)  # half of a surrogate pair, which no file can hold, has no UTF-8
    except RecursionError:
        raise CurvescopeError(repr(place), f"{rule} ({_too_deep()})", remedy=remedy) from None
    except ValueError as error:
        raise CurvescopeError(repr(place), f"{rule} ({error})", remedy=remedy) from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands there twice")
    return result


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if len(text) > _DIGITS or math.isinf(value):
        raise ValueError(f"no float is {text[:_DIGITS]}")
    return value


_CAREFUL: dict[str, Any] = {"parse_int": _integer, "parse_float": _number}
_ODD = re.compile(rb"[0-9.]{%d}|[eE][+-]?[0-9]{3}" % (_DIGITS + 1))
"""Numbers that may be more than a float or an integer of ours holds; others need no second look."""


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, _NESTED) else []
    for _ in range(_DEEPEST + 1):
        if not level:
            return
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, _NESTED)]
    raise ValueError(_too_deep())


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The table of a TOML text; ``where`` is what an error calls it.

    >>> parse_toml("a = [1, 2]", "here")
    {'a': [1, 2]}
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CurvescopeError(where, f"is not TOML: {error}") from None


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> str:
    return f"it is nested more than {_DEEPEST} levels deep"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
