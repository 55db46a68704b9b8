"""Temporary settings are put back in the right order, whenever a ctrl-C comes.

An interrupt may hit Python's own code between two contexts, so that an inner one is left late, by
the garbage collector, after an outer one: it would then put back what was there *inside* the outer
one. Every thread therefore keeps a list of what it has to put back, the latest last. Leaving a
context puts back all that came after it as well, and what has been put back is off the list.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PutBack = Callable[[], None]
"""Puts something back; may be called again when it was interrupted."""


class _Open(threading.local):
    """The settings that this thread has to put back, the latest last."""

    def __init__(self) -> None:
        self.all: list[PutBack] = []


_open = _Open()


@contextmanager
def undone(put_back: PutBack) -> Iterator[None]:
    """Whatever is set inside is put back on the way out.

    >>> numbers = [1]
    >>> with undone(numbers.clear):
    ...     numbers.append(2)
    >>> numbers
    []
    """
    mine = _open.all
    try:
        mine.append(put_back)
        yield
    finally:
        certainly(lambda: _unwind(mine, put_back))


def certainly(put_back: PutBack) -> None:
    """Put something back to the end, also when ctrl-C comes in the middle."""
    try:
        put_back()
    except KeyboardInterrupt:
        put_back()
        raise


def _unwind(waiting: list[PutBack], last: PutBack) -> None:
    while any(put_back is last for put_back in waiting):
        waiting[-1]()
        waiting.pop()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A ctrl-C during a few operations of torch comes after them.

    For torch's transforms (``vmap``, ``jvp``), which an interrupt leaves open for good.
    """
    mine = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if mine else None
    if not callable(handler):
        yield
        return
    late: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: late.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if late:
            handler(*late[0])
