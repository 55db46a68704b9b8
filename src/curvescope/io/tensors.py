"""Named tensors as safetensors: plain numbers behind a JSON header, so that nothing in it can run.

A file that is written here carries a checksum of its tensors and texts, which is compared when it
is read; a file from elsewhere has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.io.checksum import checksum
from curvescope.io.files import PathLike, atomic, check_regular, unreadable
from curvescope.io.text import parse_json

_KEY = "checksum"
NOTES = "curvescope"
"""The text with notes, as JSON, in the metadata of weights."""


def write_tensors(
    path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors and a text for each metadata key as one safetensors file.

    Tensors on any device, views and tensors that share memory are copied; each one is written out.

    Args:
        path: The file; its folder must exist.
        tensors: The tensors to store, by name.
        metadata: Texts to store with them.

    Raises:
        CurvescopeError: If a value is not a plain tensor, or a metadata value not a text.

    >>> import tempfile, torch, pathlib
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "weights.safetensors"
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
    """The bytes that :func:`write_tensors` writes; ``path`` is named in errors."""
    where = f"write_tensors({str(path)!r})"
    texts = dict(metadata or {})
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or value.is_sparse or value.is_meta:
            rule = f"{name!r} must be a dense tensor with values"
            raise CurvescopeError(where, rule, given=type(value))
    for key, text in texts.items():
        if not isinstance(text, str) or key == _KEY:
            rule = f"metadata {key!r} must be a text"
            raise CurvescopeError(where, rule, given=type(text).__name__)
    plain = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    return _with_texts(
        safetensors.torch.save(plain), {**texts, _KEY: checksum(plain, sorted(texts.items()))}
    )


def _with_texts(raw: bytes, texts: Mapping[str, str]) -> bytes:
    """The file with metadata in a fixed order; safetensors itself writes it in a random one."""
    end = 8 + int.from_bytes(raw[:8], "little")
    head = {"__metadata__": dict(sorted(texts.items())), **json.loads(raw[8:end])}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    return b"".join([len(text).to_bytes(8, "little"), text, memoryview(raw)[end:]])


def read_tensors(
    path: PathLike, *, ours: bool = False, links: bool = True
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, on the CPU, and its metadata.

    Args:
        path: The file.
        ours: Whether it must have been written here, and so carry a checksum.
        links: Whether the file may be a symbolic link.

    Raises:
        CurvescopeError: If the file is missing, truncated, not a safetensors file, or not as it was
            written.
    """
    with _opened(path, links=links) as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    noted = metadata.pop(_KEY, None)
    if noted is None and ours:
        remedy = "it is damaged, or not from this version"
        raise CurvescopeError(repr(str(path)), "has no checksum", remedy=remedy)
    if noted is not None and noted != checksum(tensors, sorted(metadata.items())):
        rule = "is damaged, its checksum is wrong"
        raise CurvescopeError(repr(str(path)), rule, remedy="restore it or make it anew")
    return tensors, metadata


def check_tensors(path: PathLike) -> Path:
    """The path, if it is that of a safetensors file as long as its header says; cheap.

    Raises:
        CurvescopeError: If it is missing, truncated, longer, or not a safetensors file.
    """
    with _opened(path):
        return Path(path)


@contextmanager
def _opened(path: PathLike, *, links: bool = True) -> Iterator[Any]:
    check_regular(path, links=links)
    try:
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from None
    except (safetensors.SafetensorError, ValueError, RuntimeError) as error:
        rule = f"is not a complete safetensors file ({error})"
        remedy = "it is truncated, damaged or foreign"
        raise CurvescopeError(repr(str(path)), rule, remedy=remedy) from None


def read_notes(path: PathLike) -> dict[str, Any]:
    """The notes of a file that was written here with ``notes``, its tensors looked at as well.

    Raises:
        CurvescopeError: If it is missing, damaged, or from elsewhere.
    """
    _, metadata = read_tensors(path, ours=True, links=False)
    return notes_of(metadata)


def notes_of(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The notes that were stored with tensors; empty for a file from elsewhere."""
    try:
        notes = parse_json(metadata.get(NOTES, "{}"), "metadata")
    except CurvescopeError:
        return {}
    return notes if isinstance(notes, dict) else {}
