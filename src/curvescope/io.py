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
from contextlib import ExitStack, contextmanager, suppress
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
    with _beside(target) as temporary:
        yield temporary
        flush(temporary)
        temporary.replace(target)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            flush(target.parent)


@contextmanager
def atomic_all(*paths: PathLike) -> Iterator[tuple[Path, ...]]:
    """Temporary paths for files that belong together; the last one says that the others are there.

    All are complete on the disk before any of them is moved. The last file is removed first and
    moved last: whoever finds it finds the files that belong to it, also after a kill in between.

    Args:
        *paths: The files; their folders must exist.

    Raises:
        CurvescopeError: If a folder is missing, protected or full; all files are as they were then.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_all(folder / "numbers", folder / "page") as (numbers, page):
    ...     _ = numbers.write_text("1 2 3"), page.write_text("see numbers")
    >>> sorted(file.name for file in folder.iterdir())
    ['numbers', 'page']
    """
    with ExitStack() as stack:
        temporary = tuple(stack.enter_context(_beside(path)) for path in paths)
        yield temporary
        for file, path in zip(temporary, paths, strict=True):
            with _said(path):
                flush(file)
        last = Path(paths[-1])
        with _said(last):
            last.unlink(missing_ok=True)
        for file, path in zip(temporary, paths, strict=True):
            with _said(path):
                file.replace(path)
                if os.name == "posix":
                    flush(Path(path).parent)


@contextmanager
def _beside(path: PathLike) -> Iterator[Path]:
    """A new file in the same folder, gone at the end unless it was moved."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    with _said(path):
        try:
            temporary.touch(exist_ok=False)
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def _said(path: PathLike) -> Iterator[None]:
    """An error of the operating system as one sentence about the file that was to be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        msg = f"{str(path)!r}: cannot be written ({reason}); check the folder and its space"
        raise CurvescopeError(msg) from None


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
    text = json_text(path, obj)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(path: PathLike, obj: Any) -> str:
    """What :func:`write_json` writes; ``path`` is what errors are about."""
    return _encode(path, obj, indent=2) + "\n"


def read_json(path: PathLike) -> Any:
    """The contents of a JSON file.

    Raises:
        CurvescopeError: If the file is missing, cannot be read or is not JSON.
    """
    _need_regular(path)
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        msg = _unreadable(path, error)
        raise CurvescopeError(msg) from None
    except ValueError as error:
        msg = f"{str(path)!r}: is not JSON ({error}); the file is damaged or foreign"
        raise CurvescopeError(msg) from None


def append_json_line(path: PathLike, obj: Any) -> None:
    """Add ``obj`` as one line of JSON; a crash can tear only this line, which a reader drops.

    Raises:
        CurvescopeError: If it cannot be written.

    >>> import tempfile
    >>> log = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> append_json_line(log, {"epoch": 1})
    >>> with log.open("a") as file:
    ...     _ = file.write('{"epo')
    >>> read_json_lines(log)
    [{'epoch': 1}]
    """
    text = _encode(path, obj, indent=None)
    with _said(path), Path(path).open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def read_json_lines(path: PathLike) -> list[Any]:
    """The objects of a file of JSON lines; a last line without its end is left out as torn.

    Raises:
        CurvescopeError: If the file is missing, or a complete line is not JSON.
    """
    _need_regular(path)
    try:
        *lines, _ = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
        return [json.loads(line) for line in lines]
    except OSError as error:
        msg = _unreadable(path, error)
        raise CurvescopeError(msg) from None
    except ValueError as error:
        msg = f"{str(path)!r}: a line is not JSON ({error}); the file is damaged"
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
    raw = tensor_bytes(path, tensors, metadata)
    with atomic(path) as temporary:
        temporary.write_bytes(raw)


def tensor_bytes(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> bytes:
    """What :func:`write_tensors` writes; ``path`` is what errors are about."""
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
    return safetensors.torch.save(plain, dict(metadata) if metadata else None)


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
        msg = _unreadable(path, error)
        raise CurvescopeError(msg) from None
    except safetensors.SafetensorError as error:
        msg = (
            f"{str(path)!r}: is not a complete safetensors file ({error}); it is truncated, "
            "damaged or foreign"
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


def _need_regular(path: PathLike) -> None:
    """A device or a pipe may have no end."""
    place = Path(path)
    if place.exists() and not place.is_file() and not place.is_dir():
        msg = f"{str(path)!r}: is not a regular file"
        raise CurvescopeError(msg)


def _unreadable(path: PathLike, error: OSError) -> str:
    reason = error.strerror or "the file is missing or unreadable"
    return f"{str(path)!r}: cannot be read ({reason}); check the path"
