"""Archives of plain arrays (``.npz``), their headers read and judged before anything is unpacked.

A header says how many numbers there are. Only an archive that holds exactly these, in an ordinary
compression and not far more than a file of its size should, is read; Python objects never are.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from curvescope.errors import CurvescopeError
from curvescope.io.files import PathLike, check_regular

_HEADER = 1 << 16
"""Bytes of an array's header."""
_MUCH, _RATIO = 1 << 28, 100
"""An archive that unpacks to more bytes, at a higher ratio, is refused as no data."""
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_READERS: dict[Any, Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class _Unsound(Exception):
    """An archive is not sound; the message says why."""


@dataclass(frozen=True)
class ArrayHeader:
    """The header of an array: its shape and type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def array_headers(source: PathLike | bytes, where: str) -> dict[str, ArrayHeader]:
    """The arrays of an archive by name, from their headers alone.

    Raises:
        CurvescopeError: If it is no sound archive of plain arrays.
    """
    return _judged(source, where, ())[0]


def read_arrays(
    source: PathLike | bytes, where: str, names: Iterable[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an archive.

    Args:
        source: The file, or its contents.
        where: The beginning of error messages.
        names: The arrays to read, of those that exist; all by default.

    Raises:
        CurvescopeError: If it is no sound archive of plain arrays.

    >>> buffer = io.BytesIO()
    >>> np.savez(buffer, X=np.eye(2))
    >>> read_arrays(buffer.getvalue(), "example")["X"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return _judged(source, where, names)[1]


def _judged(
    source: PathLike | bytes, where: str, names: Iterable[str] | None
) -> tuple[dict[str, ArrayHeader], dict[str, npt.NDArray[Any]]]:
    if not isinstance(source, bytes):
        check_regular(source)
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
            members = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
            if len(members) < len(file.infolist()):
                raise _Unsound("two arrays have one name")
            headers = {name: _header(file, member) for name, member in members.items()}
            _refuse_bombs(file, headers)
            selected = headers if names is None else [name for name in names if name in headers]
            return headers, {name: _array(file, members[name]) for name in selected}
    except _Unsound as error:
        rule = f"is not an archive of plain arrays ({error})"
        raise CurvescopeError(where, rule, remedy="save it with numpy.savez") from None
    except Exception as error:  # a damaged archive may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        rule = f"is not an archive of plain arrays ({reason})"
        raise CurvescopeError(where, rule, remedy="save it with numpy.savez") from None


def _header(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayHeader:
    if member.flag_bits & 1 or member.compress_type not in _COMPRESSIONS:
        raise _Unsound(f"{member.filename} is encrypted or compressed in a way that is not read")
    with file.open(member) as stream:
        head = io.BytesIO(stream.read(_HEADER))
    reader = _READERS.get(np.lib.format.read_magic(head))
    if reader is None:
        raise _Unsound(f"{member.filename} is an array of another version")
    shape, _, dtype = reader(head)
    if dtype.hasobject:
        name = member.filename.removesuffix(".npy")
        raise _Unsound(
            f"{name} holds Python objects, which are not read since they can execute code"
        )
    if head.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
        raise _Unsound(f"{member.filename} should hold {math.prod(shape):,} numbers, and does not")
    return ArrayHeader(shape, dtype)


def _refuse_bombs(file: zipfile.ZipFile, headers: dict[str, ArrayHeader]) -> None:
    expanded = sum(math.prod(each.shape) * each.dtype.itemsize for each in headers.values())
    stored = file.fp.seek(0, io.SEEK_END) if file.fp is not None else 0
    if expanded > _MUCH and expanded > _RATIO * stored:
        raise _Unsound(f"its {stored:,} bytes expand to {expanded:,}")


def _array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with file.open(member) as stream:
        source: BinaryIO = stream  # type: ignore[assignment]
        return np.lib.format.read_array(source, allow_pickle=False)
