"""Files as such: replaced in one step, and opened only where they are regular files.

A file is first written beside its place, flushed to the disk and then moved there, which replaces
an older file in one step: whoever reads sees the old contents or the new ones, also after a crash.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from curvescope.errors import CurvescopeError

PathLike = str | os.PathLike[str]

_writes = True  # whether this process stores results; see written_by


@contextmanager
def written_by(this_process: bool) -> Iterator[None]:
    """In the block only one of several processes that compute the same stores results.

    The others take no locks, and what they would save, results and checkpoints, goes nowhere.
    """
    global _writes
    before, _writes = _writes, _writes and this_process
    try:
        yield
    finally:
        _writes = before


@contextmanager
def written_by_each() -> Iterator[None]:
    """In the block every process writes: files of its own, such as a rank's share of vectors."""
    global _writes
    before, _writes = _writes, True
    try:
        yield
    finally:
        _writes = before


def writes() -> bool:
    """Whether this process stores results, and takes locks for that."""
    return _writes


LARGEST = 1 << 26
"""Bytes of a file that is read whole; what is written here is far smaller."""
_PART = ".*.part"


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
            with writing(path):
                flush(file)
        last = Path(paths[-1])
        with writing(last):
            last.unlink(missing_ok=True)
        for file, path in zip(temporary, paths, strict=True):
            with writing(path):
                file.replace(path)
                if os.name == "posix":
                    flush(Path(path).parent)


@contextmanager
def _beside(path: PathLike) -> Iterator[Path]:
    """A new file in the same folder, gone at the end unless it was moved."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    with writing(path):
        try:
            temporary.touch(exist_ok=False)
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: PathLike) -> Iterator[None]:
    """An error of the operating system as one sentence about the file that was to be written."""
    try:
        yield
    except OSError as error:
        rule = f"cannot be written ({error.strerror or error})"
        remedy = "check the folder and its space"
        raise CurvescopeError(repr(str(path)), rule, remedy=remedy) from None


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
        rule = f"cannot be made ({error.strerror})"
        raise CurvescopeError(repr(str(path)), rule, remedy="name another folder") from None
    return Path(path)


def flush(path: PathLike) -> None:
    """Wait until a file's contents, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Temporary files of killed processes ------------------------------------------------------------


def part_files(folder: PathLike) -> set[Path]:
    """The files in a folder that were begun and not finished.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / ".config.json.77.ab12.part").write_text("{"), (folder / "mine").touch()
    >>> [file.name for file in part_files(folder)]
    ['.config.json.77.ab12.part']
    """
    return set(Path(folder).glob(_PART))


def remove_parts(*folders: PathLike) -> None:
    """Remove what killed processes have left in folders that no other process writes into.

    Raises:
        CurvescopeError: If a folder is protected.
    """
    for folder in folders if _writes else ():
        for file in part_files(folder):
            with writing(file):
                file.unlink(missing_ok=True)


# Reading ----------------------------------------------------------------------------------------


def read_bytes(path: PathLike, *, largest: int = LARGEST, links: bool = True) -> bytes:
    """The contents of a regular file.

    Args:
        path: The file.
        largest: A longer file is refused before it is read.
        links: Whether the file may be a symbolic link.

    Raises:
        CurvescopeError: If it is missing, protected, too long, or anything but a regular file: a
            pipe or a device may have no end.

    >>> read_bytes("/dev/null")
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: '/dev/null': is not a regular file; ...
    """
    check_regular(path, largest=largest, links=links)
    # A pipe that has taken the file's place since then is opened without waiting for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            raw = file.read(largest + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(raw or b"") > largest:
        raise _too_long(path, largest)
    return raw or b""


def check_regular(path: PathLike, *, largest: int | None = None, links: bool = True) -> None:
    """Refuse what is no regular file, or longer than ``largest`` bytes, without opening it."""
    try:
        status = os.stat(path, follow_symlinks=links)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if stat.S_ISLNK(status.st_mode):
        rule = "is a link, which is not followed here"
        raise CurvescopeError(repr(str(path)), rule, remedy="put the file itself there")
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise CurvescopeError(repr(str(path)), f"is {kind}", remedy="name a file")
    if largest is not None and status.st_size > largest:
        raise _too_long(path, largest)


def _too_long(path: PathLike, largest: int) -> CurvescopeError:
    rule = f"is longer than {largest:,} bytes"
    return CurvescopeError(repr(str(path)), rule, remedy="it is damaged or foreign")


def unreadable(path: PathLike, error: Exception) -> CurvescopeError:
    """The error for a file that the operating system cannot read."""
    reason = getattr(error, "strerror", None) or "the file is missing or unreadable"
    rule = f"cannot be read ({reason})"
    return CurvescopeError(repr(str(path)), rule, remedy="check the path")
