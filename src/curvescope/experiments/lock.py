"""One process at a time in a folder.

The lock is the operating system's own: it ends with the process that holds it, also after a kill,
so that there is never a stale one to remove by hand.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from curvescope.errors import CurvescopeError

_TRIES, _PAUSE = 3, 0.05
"""Someone who only looks (:func:`busy`) holds a lock for an instant."""

if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder/.lock`` while the block runs.

    Raises:
        CurvescopeError: If another process holds it, or it cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with locked(folder), locked(folder):
    ...     pass
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: ...: another process is working here; wait for its end, ...
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
        handle = os.open(folder / ".lock", flags, 0o644)
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise CurvescopeError(repr(str(folder)), rule, remedy="name another folder") from None
    try:
        if not _taken(handle) or _replaced(handle, folder / ".lock"):
            rule = "another process is working here"
            remedy = "wait for its end, or name another folder"
            raise CurvescopeError(repr(str(folder)), rule, remedy=remedy)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    """Take the lock, unless someone holds it for longer than a look."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        try:
            _take(handle)
        except OSError:
            continue
        return True
    return False


def _replaced(handle: int, file: Path) -> bool:
    """Whether the lock's file was removed by the process that held it before, and made anew."""
    try:
        return not os.path.samestat(os.fstat(handle), os.stat(file))
    except OSError:
        return True


def busy(folder: Path) -> bool:
    """Whether a process works in the folder at this moment; nothing is written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with locked(folder):
    ...     busy(folder)
    True
    >>> busy(folder)
    False
    """
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return False  # no lock, or not ours to look at
    try:
        _take(handle)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make ``folder`` and hold it while the block runs; what no run has begun in is left as it was.

    Raises:
        CurvescopeError: If it cannot be made or written, or another process holds it.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> with held(root / "runs" / "first"):
    ...     pass
    >>> list(root.iterdir())
    []
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    begun, config = (folder / ".lock").exists(), folder / "config.json"
    foreign = config.exists() and not begun  # or a run from elsewhere: it needs no lock to be read
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"cannot be made ({error.strerror})"
        remedy = "name another folder with --out"
        raise CurvescopeError(repr(str(folder)), rule, remedy=remedy) from None
    try:
        with locked(folder):
            try:
                yield
            finally:
                if foreign or not config.exists():  # while it is ours, so that it stays so
                    (folder / ".lock").unlink(missing_ok=True)
    finally:
        if not config.exists():
            with suppress(OSError):
                for place in made:
                    place.rmdir()  # one that is not empty stays
