"""Progress of long work in the terminal: one line per stage with steps, products and time left.

Bars go to standard error, so that standard output stays a table or JSON, and only to a terminal:
in a pipe or a log file they would be noise.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars

from curvescope.cli.interrupts import check

if TYPE_CHECKING:
    from curvescope.spectra.control import Progress


class Display:
    """A context manager; :meth:`stage` opens a stage, :meth:`step` moves the bar below it.

    ``step`` is a callback for the ``progress`` argument of every estimator.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._stage, self._task = "", self._bars.add_task("starting", total=None, detail="")

    def stage(self, name: str) -> None:
        """Begin a stage; its name stays in front of the estimates that belong to it."""
        check()
        self._stage = name
        self._bars.reset(self._task, description=name, total=None, detail="")

    def step(self, progress: Progress) -> None:
        """Show one step of an estimate."""
        check()
        left = "" if progress.remaining == float("inf") else f", {progress.remaining:.0f} s left"
        self._bars.update(
            self._task,
            description=f"{self._stage}: {progress.task}",
            completed=progress.done,
            total=progress.total,
            detail=f"{progress.products} products{left}",
        )

    def move(self, done: int, total: int, words: str) -> None:
        """Show the progress of work that is no estimate."""
        check()
        self._bars.update(self._task, completed=done, total=total, detail=words)

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
