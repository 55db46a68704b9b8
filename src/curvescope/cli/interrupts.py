"""Ctrl-C in the middle of work: what is complete is kept, and one sentence says how to go on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from curvescope.cli.entry import leave
from curvescope.cli.ranks import several


class Stopped(Exception):
    """The user has stopped a command; the message says how to go on."""

    interrupted = True  # what other ranks are told


class _Heard:
    """Whether ctrl-C was pressed during the work; code in between may have swallowed it."""

    def __init__(self) -> None:
        self.once = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.once = True
        raise KeyboardInterrupt

    def unraisable(self, caught: Any) -> None:
        """A destructor cannot pass an exception on; the next step of the work raises it again."""
        if caught.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(caught)


def check() -> None:
    """Raise ``KeyboardInterrupt`` again if it was swallowed; called between steps of the work."""
    heard = signal.getsignal(signal.SIGINT)
    if isinstance(heard, _Heard) and heard.once:
        raise KeyboardInterrupt


@contextmanager
def stoppable(advice: str, *places: Path) -> Iterator[None]:
    """Turn ctrl-C in the block into :class:`Stopped`, after the block has saved its state.

    Any error after ctrl-C counts as its consequence: extension modules turn it into others.

    Args:
        advice: How to go on, in words.
        *places: Where finished parts lie; if none of them is there, nothing was kept.

    Raises:
        Stopped: After ctrl-C, with the advice.
    """
    heard = _Heard()
    with _listening(heard):
        try:
            yield
        except BaseException as error:
            if heard.once or isinstance(error, KeyboardInterrupt) or _of_another_rank(error):
                raise _stopped(advice, places) from None
            raise
    if heard.once:  # swallowed, and the work came to its end
        raise _stopped(advice, places)


def _of_another_rank(error: BaseException) -> bool:
    """Whether ctrl-C has reached another rank first."""
    return getattr(error, "rank", None) is not None and "interrupted" in str(error)


def _stopped(advice: str, places: Sequence[Path]) -> Stopped:
    anything_written = not places or any(place.exists() for place in places)
    return Stopped(advice if anything_written else "nothing was written")


@contextmanager
def _listening(heard: _Heard) -> Iterator[None]:
    """Ctrl-C raises in the block, if it ended the process before; elsewhere it is left as it is."""
    if signal.getsignal(signal.SIGINT) is not leave:
        yield
        return
    hook = sys.unraisablehook
    # Several ranks must stop at the same step, for which estimates hold Python's own handler back.
    signal.signal(signal.SIGINT, signal.default_int_handler if several() else heard)
    sys.unraisablehook = heard.unraisable
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, leave)
        sys.unraisablehook = hook
