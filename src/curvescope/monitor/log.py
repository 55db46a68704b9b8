"""The monitor's log: JSON lines in a run directory, and other places for the same numbers.

``monitor.jsonl`` begins with a :class:`Header`, which says of what training it is, and goes on with
:class:`Record` and :class:`~curvescope.monitor.Event` in the order of steps. Every line is
a stored dataclass with type, format and checksum, is written whole, and can be read meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from curvescope._checks import AnyFloat
from curvescope.errors import CurvescopeError
from curvescope.io import (
    PathLike,
    append_line,
    atomic,
    header,
    line,
    make_folder,
    read_json_lines,
    unpack,
)
from curvescope.monitor.events import Event

LOG = "monitor.jsonl"
_REMEDY = "the file is damaged or foreign"
Sink = Callable[[dict[str, float], int], object]
"""A function of ``(values, step)``, such as ``wandb.log``."""


@dataclass(frozen=True)
class Header:
    """Of what training a log is; ``identity``: that of parameters, probe, loss and quantities."""

    FORMAT: ClassVar[int] = 1
    identity: str
    version: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """The values of one step, by their names; ``seconds`` since the monitor's first step."""

    FORMAT: ClassVar[int] = 1
    step: int
    seconds: float
    values: Mapping[str, AnyFloat]


@dataclass(frozen=True)
class MonitorLog:
    """A log as it was read: complete up to the last line that is complete."""

    header: Header
    records: tuple[Record, ...]
    events: tuple[Event, ...]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """The steps at which a metric was measured, and its values."""
        pairs = [(r.step, r.values[name]) for r in self.records if name in r.values]
        return [step for step, _ in pairs], [value for _, value in pairs]

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that there are, in the order of their first appearance."""
        return tuple(dict.fromkeys(name for record in self.records for name in record.values))


def read_log(folder: PathLike) -> MonitorLog:
    """The log in a run directory, also while it is written.

    Raises:
        CurvescopeError: If there is none, or it is damaged.
    """
    path = log_path(folder)
    lines = read_json_lines(path)
    if not lines:
        raise CurvescopeError(repr(str(path)), "holds no monitor's log", remedy=_REMEDY)
    head = unpack(Header, lines[0], repr(str(path)), remedy=_REMEDY)
    entries = [_entry(stored, path) for stored in lines[1:]]
    records = tuple(each for each in entries if isinstance(each, Record))
    events = tuple(each for each in entries if isinstance(each, Event))
    return MonitorLog(head, records, events)


def _entry(stored: Any, path: Path) -> Record | Event:
    """A line after the first."""
    where = repr(str(path))
    if header(stored) == Event.__name__:
        return unpack(Event, stored, where, remedy=_REMEDY)
    return unpack(Record, stored, where, remedy=_REMEDY)


def log_path(folder: PathLike) -> Path:
    """The log's file in a run directory, or the file itself."""
    path = Path(folder)
    return path if path.suffix == ".jsonl" else path / LOG


class FileLog:
    """Writes the log of one training."""

    def __init__(self, folder: PathLike, head: Header) -> None:
        self._path, self._head = log_path(folder), head
        self._open = False

    def resume(self, step: int) -> None:
        """Go on after ``step``: later lines of an earlier try are cut.

        Raises:
            CurvescopeError: If the log that is there belongs to another training.
        """
        if not self._path.exists():
            self.begin()
            return
        before = read_log(self._path)
        if before.header.identity != self._head.identity:
            rule = "holds the log of another training"
            raise CurvescopeError(repr(str(self._path)), rule, remedy="name another folder")
        entries: list[Record | Event] = []
        for stored in read_json_lines(self._path)[1:]:
            entry = _entry(stored, self._path)
            if entry.step <= step:
                entries.append(entry)
        with atomic(self._path) as temporary:
            lines = [line(self._path, each) for each in (before.header, *entries)]
            temporary.write_text("".join(lines), encoding="utf-8")
        self._open = True

    def begin(self) -> None:
        """The header of a new log.

        Raises:
            CurvescopeError: If a log is there already.
        """
        if self._open:
            return
        if self._path.exists():
            rule = "holds the log of an earlier training"
            remedy = "load the monitor's state to go on with it, or name another folder"
            raise CurvescopeError(repr(str(self._path)), rule, remedy=remedy)
        make_folder(self._path.parent)
        append_line(self._path, self._head)
        self._open = True

    def write(self, entries: Sequence[Record | Event]) -> None:
        """Add whole lines."""
        for entry in entries:
            append_line(self._path, entry)


def sink_of(log: Any) -> Sink:
    """A function of ``(values, step)`` for a callable or TensorBoard's ``SummaryWriter``."""
    if hasattr(log, "add_scalar"):

        def write(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                log.add_scalar(name, value, step)

        return write
    if callable(log):
        function: Sink = log
        return function
    rule = "each `log` must be a folder, a function of (dict, step) or a SummaryWriter"
    raise CurvescopeError("Monitor(log)", rule, given=type(log).__name__)
