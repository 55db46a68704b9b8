"""One process at a time in a folder.

The lock is the operating system's own, on a file that is there while it is held: it ends with the
process that holds it, also after a kill, so that there is never a stale one to remove by hand.

On a shared disk it holds between the processes of one machine; whether it holds between machines is
the disk's affair: NFS does it unless it is mounted with ``nolock`` or ``local_lock``, and gives a
dead machine's lock back when the server has missed it, Lustre only where it is mounted with
``flock``. Sweeps, whose workers are meant for several machines, do not rely on it
(:mod:`curvescope.sweeps.claims`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from curvescope.errors import CurvescopeError

LOCK = ".lock"


class Busy(CurvescopeError):
    """Another process works in the folder; it may be free later."""


_TRIES, _PAUSE = 3, 0.05
"""Someone who only looks (:func:`busy`) holds a lock for an instant."""

if sys.platform == "win32":
    import msvcrt

    def take(handle: int) -> None:
        """Lock an open file; ``OSError`` where another process has it."""
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def take(handle: int) -> None:
        """Lock an open file; ``OSError`` where another process has it."""
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
    curvescope.io.lock.Busy: ...: another process is working here; wait for its end, ...
    >>> list(folder.iterdir())
    []
    """
    file = folder / LOCK
    try:
        handle = _taken(file)
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise CurvescopeError(repr(str(folder)), rule, remedy="name another folder") from None
    if handle is None:
        rule = "another process is working here"
        remedy = "wait for its end, or name another folder"
        raise Busy(repr(str(folder)), rule, remedy=remedy)
    try:
        yield
    finally:
        try:
            with suppress(OSError):  # an open file cannot be removed everywhere
                file.unlink()
        finally:
            os.close(handle)


def _taken(file: Path) -> int | None:
    """The open file, locked; None where someone holds it for longer than a look."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o644)
        with suppress(OSError):
            take(handle)
            # The process that held it may have removed the file meanwhile: then it locks nothing.
            if os.path.samestat(os.fstat(handle), os.stat(file)):
                return handle
        os.close(handle)
    return None


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
        handle = os.open(folder / LOCK, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return False  # no lock, or not ours to look at
    try:
        take(handle)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
