"""Files: JSON and tensors, written whole or not at all, read without executing anything.

A file is first written beside its place, flushed to the disk and then moved there, which replaces
an older file in one step: whoever reads sees the old contents or the new ones, also after a crash.
Tensors are stored as safetensors (plain numbers behind a JSON header), so that nothing in a file
from elsewhere can run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from curvescope._checks import CurvescopeError

PathLike = str | os.PathLike[str]


@contextmanager
def atomic(path: PathLike) -> Iterator[Path]:
    """A temporary path in the same folder, which becomes ``path`` when the block ends well.

    If the block raises, ``path`` stays as it was and the temporary file is removed.

    Args:
        path: The file to write; its folder must exist.

    Raises:
        CurvescopeError: If the folder is missing, protected or full.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic(place) as temporary:
    ...     _ = temporary.write_text("whole")
    >>> place.read_text(), [file.name for file in place.parent.iterdir()]
    ('whole', ['note.txt'])
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        flush(temporary)
        temporary.replace(target)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            flush(target.parent)
    except OSError as error:
        msg = f"{str(path)!r}: cannot be written ({error.strerror}); check the folder and its space"
        raise CurvescopeError(msg) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_folder(path: PathLike) -> Path:
    """A folder with all above it, made if it is not there.

    Raises:
        CurvescopeError: If it cannot be made.

    >>> import tempfile
    >>> make_folder(Path(tempfile.mkdtemp()) / "a" / "b").name
    'b'
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{str(path)!r}: cannot be made ({error.strerror}); name another folder"
        raise CurvescopeError(msg) from None
    return Path(path)


def write_json(path: PathLike, obj: Any) -> None:
    """Write ``obj`` as indented JSON; dataclasses become objects, tuples become arrays.

    Numbers that are not finite are written as ``NaN`` and ``Infinity``, which Python reads back.

    Raises:
        CurvescopeError: If something in ``obj`` has no JSON form; nothing is written then.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "result.json"
    >>> write_json(place, {"trace": 1.5, "shape": (2, 3)})
    >>> read_json(place)
    {'trace': 1.5, 'shape': [2, 3]}
    """
    text = _encode(path, obj, indent=2)
    with atomic(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: PathLike) -> Any:
    """The contents of a JSON file.

    Raises:
        CurvescopeError: If the file is missing, cannot be read or is not JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        msg = _unreadable("read_json", path, error)
        raise CurvescopeError(msg) from None
    except ValueError as error:
        msg = f"read_json({str(path)!r}): is not JSON ({error}); the file is damaged or foreign"
        raise CurvescopeError(msg) from None


def append_json_line(path: PathLike, obj: Any) -> None:
    """Add ``obj`` as one line of JSON; a crash can tear only this line, which a reader drops.

    >>> import tempfile
    >>> log = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> append_json_line(log, {"epoch": 1})
    >>> with log.open("a") as file:
    ...     _ = file.write('{"epo')
    >>> read_json_lines(log)
    [{'epoch': 1}]
    """
    text = _encode(path, obj, indent=None)
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def read_json_lines(path: PathLike) -> list[Any]:
    """The objects of a file of JSON lines; a last line without its end is left out as torn.

    Raises:
        CurvescopeError: If the file is missing, or a complete line is not JSON.
    """
    try:
        *lines, _ = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
        return [json.loads(line) for line in lines]
    except OSError as error:
        msg = _unreadable("read_json_lines", path, error)
        raise CurvescopeError(msg) from None
    except ValueError as error:
        msg = f"read_json_lines({str(path)!r}): a line is not JSON ({error}); the file is damaged"
        raise CurvescopeError(msg) from None


def write_tensors(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors and a text for each metadata key as one safetensors file.

    Tensors on any device, views and tensors that share memory are copied; each one is written out.

    Args:
        path: The file; its folder must exist.
        tensors: What to store, by name.
        metadata: Texts to store with them.

    Raises:
        CurvescopeError: If a value is not a plain tensor, or a metadata value not a text.

    >>> import tempfile, torch
    >>> place = Path(tempfile.mkdtemp()) / "weights.safetensors"
    >>> write_tensors(place, {"w": torch.arange(3.0)}, {"network": "F-200^2"})
    >>> read_tensors(place)
    ({'w': tensor([0., 1., 2.])}, {'network': 'F-200^2'})
    """
    where = f"write_tensors({str(path)!r})"
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or value.is_sparse or value.is_meta:
            msg = f"{where}: {name!r} must be a dense tensor with values, got {type(value)}"
            raise CurvescopeError(msg)
    for key, text in (metadata or {}).items():
        if not isinstance(text, str):
            msg = f"{where}: metadata {key!r} must be a text, got {type(text).__name__}"
            raise CurvescopeError(msg)
    plain = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    raw = safetensors.torch.save(plain, dict(metadata) if metadata else None)
    with atomic(path) as temporary:
        temporary.write_bytes(raw)


def read_tensors(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, on the CPU, and its metadata.

    Raises:
        CurvescopeError: If the file is missing, truncated, or not a safetensors file.
    """
    try:
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            metadata = dict(file.metadata() or {})
            return {name: file.get_tensor(name) for name in file.keys()}, metadata
    except OSError as error:
        msg = _unreadable("read_tensors", path, error)
        raise CurvescopeError(msg) from None
    except safetensors.SafetensorError as error:
        msg = (
            f"read_tensors({str(path)!r}): is not a complete safetensors file ({error}); it is "
            "truncated, damaged or foreign"
        )
        raise CurvescopeError(msg) from None


def flush(path: PathLike) -> None:
    """Wait until a file's contents, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _encode(path: PathLike, obj: Any, *, indent: int | None) -> str:
    try:
        return json.dumps(obj, indent=indent, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        msg = f"write_json({str(path)!r}): {error}; convert it to numbers, texts, lists and dicts"
        raise CurvescopeError(msg) from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    msg = f"{type(value).__name__} has no JSON form"
    raise TypeError(msg)


def _unreadable(function: str, path: PathLike, error: OSError) -> str:
    reason = error.strerror or "the file is missing or unreadable"
    return f"{function}({str(path)!r}): cannot be read ({reason}); check the path"
