"""A dataclass in a file, with its type, its format and a checksum of its content.

``NAME.json`` holds the fields after the three that say what it is; tensors lie beside it in
``NAME.safetensors``. A file is read only as what it says it is, and only if nothing in it has
changed since it was written. A dataclass may say its format as a class variable ``FORMAT``; it is
1 where it does not, and grows with every change that older files do not fit.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.io.checksum import checksum
from curvescope.io.codec import Misfit, decode, encode, fields_of, holds_tensors
from curvescope.io.files import PathLike, atomic, atomic_all, writes, writing
from curvescope.io.tensors import read_tensors, tensor_bytes
from curvescope.io.text import encoded, json_text, read_json, read_json_lines

T = TypeVar("T")
_HEADER = ("type", "format", "checksum")
_REMEDY = "remove it and make it anew"


def save(path: PathLike, value: Any, kind: Any = None, *, owner: str = "") -> None:
    """Write a dataclass, and its tensors beside it; the file is there when both are complete.

    Args:
        path: A ``.json`` file; its folder must exist.
        value: A frozen dataclass.
        kind: Its type, where that has parameters.
        owner: The digest of what it belongs to; reading needs the same.

    Raises:
        CurvescopeError: If a field is not what its annotation says, or it cannot be written.

    >>> import tempfile, dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Result:
    ...     trace: float
    >>> place = Path(tempfile.mkdtemp()) / "result.json"
    >>> save(place, Result(2.5))
    >>> load(place, Result)
    Result(trace=2.5)
    >>> _ = place.write_text(place.read_text().replace("2.5", "2.4"))
    >>> load(place, Result)
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: ...: is damaged, its checksum is wrong; ...
    """
    if not writes():
        return
    plain, tensors = _packed(path, value, kind, owner)
    text = json_text(path, plain)
    if not tensors:
        with atomic(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        return
    beside = tensors_beside(path)
    raw = tensor_bytes(beside, tensors)
    with atomic_all(beside, path) as (numbers, file):
        numbers.write_bytes(raw)
        file.write_text(text, encoding="utf-8")


def load(path: PathLike, kind: type[T], *, owner: str = "", remedy: str = _REMEDY) -> T:
    """Read a dataclass that :func:`save` wrote.

    Args:
        path: The file.
        kind: The type it must hold; a parameter ``Any`` accepts anything, as plain JSON, without
            its tensors.
        owner: As for :func:`save`.
        remedy: The advice in the error about a file that is refused.

    Raises:
        CurvescopeError: If the file is missing, holds something else, has another format, or is not
            as it was written.
    """
    stored = read_json(path, links=False)
    tensors: dict[str, Tensor] = {}
    annotation: Any = kind
    if Any not in get_args(kind) and holds_tensors(annotation) and _mentions_tensors(stored):
        tensors, _ = read_tensors(tensors_beside(path), ours=True, links=False)
    return unpack(kind, stored, repr(os.fspath(path)), tensors, owner=owner, remedy=remedy)


def tensors_beside(path: PathLike) -> Path:
    """Where the tensors of a stored dataclass lie."""
    return Path(path).with_suffix(".safetensors")


def header(stored: Any) -> str | None:
    """The type that a stored dataclass says it has; None for anything else.

    >>> header({"type": "Recipe", "format": 1, "checksum": "", "seed": 0}), header([])
    ('Recipe', None)
    """
    if not isinstance(stored, dict) or not stored.keys() >= set(_HEADER):
        return None
    return stored["type"] if isinstance(stored["type"], str) else None


# Lines ------------------------------------------------------------------------------------------


def append_line(path: PathLike, value: Any, *, owner: str = "") -> None:
    """Add a dataclass without tensors as one line; a crash can tear only this line.

    Raises:
        CurvescopeError: If it cannot be written.
    """
    text = line(path, value, owner=owner)
    with writing(path), Path(path).open("a", encoding="utf-8") as file:
        file.write(text)


def line(path: PathLike, value: Any, *, owner: str = "") -> str:
    """The line that :func:`append_line` writes; ``path`` is named in errors."""
    return encoded(path, _packed(path, value, None, owner)[0], indent=None) + "\n"


def load_lines(
    path: PathLike,
    kind: type[T],
    *,
    owner: str = "",
    until: int | None = None,
    remedy: str = _REMEDY,
) -> list[T]:
    """The dataclasses of a file of lines; a last line without its end is left out as torn.

    Args:
        path: The file.
        kind: The type of each line.
        owner: As for :func:`save`.
        until: How many of them to read; later lines are not checked.
        remedy: The advice in the error about a line that is refused.

    Raises:
        CurvescopeError: If the file is missing, or a complete line is not what was written.
    """
    where = repr(os.fspath(path))
    return [
        unpack(kind, stored, where, owner=owner, remedy=remedy)
        for stored in read_json_lines(path, until=until)
    ]


# With a header ----------------------------------------------------------------------------------


def pack(value: Any, kind: Any = None) -> dict[str, Any]:
    """A dataclass without tensors as plain JSON with its type, format and checksum."""
    plain, _ = _packed("pack", value, kind, "")
    return plain


def _packed(
    path: PathLike, value: Any, kind: Any, owner: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    kind = type(value) if kind is None else kind
    reserved = set(_HEADER) & fields_of(kind).keys()
    if reserved:
        raise TypeError(
            f"{_name(kind)}: {sorted(reserved)[0]!r} is a field of every stored dataclass"
        )
    try:
        plain, tensors = encode(value, kind)
    except Misfit as error:
        remedy = "this cannot be stored"
        where = f"save({str(path)!r})"
        raise CurvescopeError(where, error.after_where(), remedy=remedy) from None
    head = {"type": _name(kind), "format": _format(kind)}
    return {**head, "checksum": _owned({**head, **plain}, owner), **plain}, tensors


def unpack(
    kind: type[T],
    stored: Any,
    where: str,
    tensors: dict[str, Tensor] | None = None,
    *,
    owner: str = "",
    remedy: str = _REMEDY,
) -> T:
    """The dataclass in plain JSON with a header.

    Args:
        kind: The type it must have.
        stored: The JSON.
        where: Where it comes from, for errors.
        tensors: Those that were stored with it.
        owner: As for :func:`save`.
        remedy: The advice in the error.

    Raises:
        CurvescopeError: If it is something else, of another format, or not as it was written.
    """
    named = header(stored)
    if named is None and _before_headers(stored, kind):
        rule = f"was written by an earlier version, whose {_name(kind)} this one does not read"
        raise CurvescopeError(where, rule, remedy=remedy)
    if named is None or not _fits(named, kind):
        what = "something else" if named is None else f"a {named}"
        raise CurvescopeError(where, f"holds no {_name(kind)}, but {what}", remedy=remedy)
    content = {name: value for name, value in stored.items() if name != "checksum"}
    if stored["format"] != _format(kind) or type(stored["format"]) is not int:
        raise CurvescopeError(where, _other_format(stored["format"], kind), remedy=remedy)
    if stored["checksum"] != _owned(content, owner):
        foreign = ", or it belongs to something else" if owner else ""
        raise CurvescopeError(where, f"is damaged, its checksum is wrong{foreign}", remedy=remedy)
    plain = {name: value for name, value in content.items() if name not in _HEADER}
    try:
        return decode(kind, plain, tensors)
    except Misfit as error:
        rule = f"is damaged ({error.after_where()})"
        raise CurvescopeError(where, rule, remedy=remedy) from None


def _before_headers(stored: Any, kind: Any) -> bool:
    """Whether this looks like what versions wrote that had no header of three fields.

    They wrote a format, or nothing but fields, of which a later version has kept at least two.
    """
    if not isinstance(stored, dict) or {"type", "checksum"} & stored.keys():
        return False
    given = stored.get("format")
    if type(given) is int or (isinstance(given, str) and given.startswith("curvescope ")):
        return True
    return len(fields_of(kind).keys() & stored.keys()) >= 2


def _other_format(given: Any, kind: Any) -> str:
    here = _format(kind)
    if type(given) is not int:
        return f"has format {given!r}, this version reads {here}"
    age = "an earlier" if given < here else "a later"
    return f"was written by {age} version: it has format {given}, this version reads {here}"


def _owned(content: dict[str, Any], owner: str) -> str:
    return checksum({}, [owner, content] if owner else content)


def _name(kind: Any) -> str:
    """The name of a type with its parameters.

    >>> _name(dict[str, int])
    'dict[str, int]'
    """
    origin = get_origin(kind)
    if origin is None:
        return getattr(kind, "__name__", str(kind))
    return f"{origin.__name__}[{', '.join(_name(each) for each in get_args(kind))}]"


def _fits(named: str, kind: Any) -> bool:
    if Any in get_args(kind):
        return named.partition("[")[0] == _name(kind).partition("[")[0]
    return named == _name(kind)


def _format(kind: Any) -> int:
    return int(getattr(get_origin(kind) or kind, "FORMAT", 1))


def _mentions_tensors(stored: Any) -> bool:
    """Whether there is the description of a tensor somewhere."""
    if isinstance(stored, dict):
        if stored.keys() == {"dtype", "shape", "checksum"}:
            return True
        return any(map(_mentions_tensors, stored.values()))
    return isinstance(stored, list) and any(map(_mentions_tensors, stored))
