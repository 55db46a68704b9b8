"""Digests of files, bytes and code."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from types import ModuleType
from typing import Literal

from curvescope.errors import CurvescopeError
from curvescope.identity.encoding import digest

Kind = Literal["sha256", "md5"]
_CHUNK = 1 << 20


def checksum(raw: bytes, kind: Kind = "sha256") -> str:
    """The plain checksum of some bytes, as tools like ``sha256sum`` print it.

    >>> checksum(b"abc")[:8], checksum(b"abc", "md5")[:8]
    ('ba7816bf', '90015098')
    """
    return hashlib.new(kind, raw, usedforsecurity=False).hexdigest()


def file_digest(path: str | os.PathLike[str], kind: Kind = "sha256") -> str:
    """The plain checksum of a file's contents, read in pieces.

    Raises:
        CurvescopeError: If it cannot be read, or is no regular file: a pipe may have no end.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "three letters"
    >>> _ = place.write_bytes(b"abc")
    >>> file_digest(place) == checksum(b"abc")
    True
    """
    total = hashlib.new(kind, usedforsecurity=False)
    try:
        # Without blocking: opening a pipe that nobody writes to would never return.
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise CurvescopeError(repr(str(path)), "is not a regular file")
            while chunk := file.read(_CHUNK):
                total.update(chunk)
    except OSError as error:
        rule = f"cannot be read ({error.strerror or error})"
        raise CurvescopeError(repr(str(path)), rule, remedy="check the path") from None
    return total.hexdigest()


def code_digest(*sources: ModuleType) -> str:
    """The digest of modules and whole packages: every file below them that is not compiled.

    >>> import curvescope.identity as package
    >>> code_digest(package) == code_digest(package) != code_digest(package.files)
    True
    """
    contents = {}
    for source in sources:
        if hasattr(source, "__path__"):
            root = Path(next(iter(source.__path__)))
            files = [file for file in root.rglob("*") if file.is_file()]
        else:
            root = Path(str(source.__file__)).parent
            files = [Path(str(source.__file__))]
        for file in files:
            if "__pycache__" not in file.parts and file.suffix != ".pyc":
                name = f"{source.__name__}/{file.relative_to(root).as_posix()}"
                contents[name] = file_digest(file)
    return digest(contents)
