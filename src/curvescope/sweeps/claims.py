"""Who works on a run: claims that hold between processes of one machine and between machines.

A claim is a file ``claim-000001`` in the folder of a run, made by a hard link, which one process
alone can make, also on NFS. It names its machine and process. Whoever holds it locks the file and
touches it every few seconds; whoever wants the run looks whether that is still so:

- On the same machine the lock decides: the operating system gives it back when the process ends,
  however it ends, so that the run of a killed worker is free at once.
- On another machine the lock is not asked, because many shared disks keep locks to themselves or
  keep those of a dead machine. A claim there has ended when it was not touched for
  :data:`LEASE` seconds by the clock of the one who looks; no two clocks are compared.

A run whose claim has ended is taken by making the claim with the next number, so that of several
who find it only one gets it. A machine that was suspended finds the higher number when it wakes up
and stops its work; what it has written until then is guarded by the lock and the identity of the
run directory.
"""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from curvescope.errors import CurvescopeError
from curvescope.io.lock import take

BEAT = 5.0
"""Seconds between two touches of a claim."""
LEASE = 90.0
"""Seconds without a touch after which another machine's claim has ended."""
_NAME = "claim-"


class Watch:
    """When the claims of other machines were last seen to change, by our own clock."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, float]] = {}

    def stands_still(self, file: Path, touched: int) -> bool:
        """Whether a claim was not touched for as long as a lease."""
        now = time.monotonic()
        before, since = self._seen.get(file, (None, now))
        if before != touched:
            since = now
        self._seen[file] = (touched, since)
        return now - since > LEASE


@contextmanager
def claimed(folder: Path, watch: Watch, lost: Callable[[], None]) -> Iterator[bool]:
    """Hold a run while the block runs; the value says whether it could be had.

    Args:
        folder: An existing folder for the run's claims.
        watch: What the caller has seen of other machines' claims.
        lost: Called from a thread when another machine has taken the run.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with claimed(folder, Watch(), print) as mine, claimed(folder, Watch(), print) as other:
    ...     mine, other
    (True, False)
    >>> list(folder.iterdir())
    []
    """
    held = _take(folder, watch)
    if held is None:
        yield False
        return
    number, handle = held
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(folder, number, ended, lost), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        ended.set()
        beat.join()
        for old in sorted(_claims(folder)):
            if old <= number:  # ours last: until then nobody else can begin anew
                with suppress(OSError):
                    _file(folder, old).unlink()
        os.close(handle)


def running(folder: Path, watch: Watch | None = None) -> bool:
    """Whether somebody works on the run; without a ``watch``, by the clocks of both machines."""
    numbers = _claims(folder)
    return bool(numbers) and _alive(_file(folder, max(numbers)), watch)


def _take(folder: Path, watch: Watch) -> tuple[int, int] | None:
    """The number of the new claim and its open file; None where another has the run."""
    last = max(_claims(folder), default=0)
    if last and _alive(_file(folder, last), watch):
        return None
    draft = folder / f".{_NAME}{uuid.uuid4().hex}"
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        try:
            take(handle)
            machine = _machine()
        except OSError:  # a disk without locks: only touches count
            machine = "no locks"
        os.write(handle, f"{machine}\n{socket.gethostname()}:{os.getpid()}\n".encode())
        try:
            os.link(draft, _file(folder, last + 1))
        except FileExistsError:
            # The answer to a link that was made may have been lost on its way from a server.
            if os.fstat(handle).st_nlink != 2:
                os.close(handle)
                return None
        except OSError as error:
            rule = f"lies on a disk that has no hard links ({error.strerror})"
            remedy = "use another folder"
            raise CurvescopeError(repr(str(folder)), rule, remedy=remedy) from None
    finally:
        with suppress(OSError):
            draft.unlink()
    return last + 1, handle


def _alive(file: Path, watch: Watch | None) -> bool:
    """Whether the holder of a claim is still there."""
    try:
        handle = os.open(file, os.O_RDWR)
    except OSError:
        return True  # given back at this moment, or not ours to judge: look again later
    try:
        machine = os.read(handle, 4096).partition(b"\n")[0].decode(errors="replace")
        touched = os.fstat(handle).st_mtime_ns
        if machine == _machine():
            try:
                take(handle)
            except OSError:
                return True
            return False
    finally:
        os.close(handle)
    if watch is None:
        return time.time() - touched / 1e9 <= LEASE
    return not watch.stands_still(file, touched)


def _beat(folder: Path, number: int, ended: threading.Event, lost: Callable[[], None]) -> None:
    """Touch the claim until the work has ended, or tell that another machine has the run."""
    while not ended.wait(BEAT):
        try:
            os.utime(_file(folder, number))
            ours = max(_claims(folder)) == number
        except FileNotFoundError:
            ours = False
        except OSError:  # a disk that does not answer may come back
            continue
        if not ours:
            lost()
            return


def _claims(folder: Path) -> list[int]:
    names = (entry.name for entry in os.scandir(folder))
    return [int(name[len(_NAME) :]) for name in names if name.startswith(_NAME)]


def _file(folder: Path, number: int) -> Path:
    return folder / f"{_NAME}{number:06d}"


@cache
def _machine() -> str:
    """This machine, since it was started; other containers on it count as the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"{platform.node()} {uuid.getnode():x}"
