"""The first line of ours that runs: ctrl-C is heard before anything slow is imported.

Until a command begins to write results, ctrl-C ends the process on the spot. Raising
``KeyboardInterrupt`` would not do: inside the import of an extension module it may be swallowed, or
come out as an ``ImportError``.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

TYPE_CHECKING = False  # as in typing, whose import would take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; this is the ``curvescope`` script."""
    listen()
    try:
        from curvescope.cli.app import run

        code = run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # between the lines that catch it
        leave()
    sys.exit(code)


def listen() -> None:
    """From here on ctrl-C ends the process at once, unless whoever started us wants it ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave)
        # The interpreter's own end is too late to interrupt: all is done and said.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """Say so and end the process, whatever it is doing; of several ranks the first one speaks."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, b"curvescope: interrupted\n")
    os._exit(INTERRUPTED)
