"""An outcome on the disk: ``DIR/PAPER/ENTRY/outcome.json``, complete or not there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.environment import environment
from curvescope.studies import listing
from curvescope.studies.entry import Entry, Outcome, Scale, Settings

FILE = "outcome.json"


@dataclass(frozen=True)
class Record:
    """An outcome with what it was made by."""

    FORMAT: ClassVar[int] = 3

    entry: str
    source: str
    shows: str
    scale: Scale
    seed: int
    seconds: float  # of the run that finished it
    finished: str  # UTC, ISO 8601
    environment: Mapping[str, Any]
    outcome: Outcome
    subject: str = ""  # network and data at this scale
    reduced: str = ""  # what is smaller than the paper's at this scale
    total: float | None = None  # seconds of all runs in its work folder; None: not known
    runs: int | None = None  # how many these were

    @property
    def verdict(self) -> str:
        """How many of the rows and checks with a range are inside it.

        >>> from curvescope.studies.entry import Row
        >>> rows = (Row("a", 1.0, low=0, high=2), Row("b", 3.0, high=2), Row("c", 1.0))
        >>> Record("p/e", "", "", "smoke", 0, 1.0, "", {}, Outcome(rows)).verdict
        '1 of 2 as in the paper'
        """
        judged = self.outcome.judged
        met = sum(row.agrees is True for row in judged)
        return f"{met} of {len(judged)} as in the paper" if judged else "no range to meet"

    def save(self, folder: Path) -> None:
        """Write ``folder/PAPER/ENTRY/outcome.json`` in one step."""
        place = io.make_folder(folder / self.entry)
        numbers = io.parse_json(io.json_text(place / FILE, dict(self.outcome.numbers)), str(place))
        io.save(place / FILE, replace(self, outcome=replace(self.outcome, numbers=numbers)))


@dataclass(frozen=True)
class Ledger:
    """How long each run of an entry took, also of those that were stopped."""

    seconds: tuple[float, ...]


def run(entry: Entry, settings: Settings) -> Record:
    """Compute an entry.

    ``settings.work`` keeps how long each run took, also of those that were stopped: the total of a
    record is the time that all runs together spent on it.
    """
    if settings.scale not in entry.scales:
        rule = f"{entry.name} has no scale {settings.scale!r}"
        raise CurvescopeError("reproduce", rule, remedy=f"it has {', '.join(entry.scales)}")
    ledger = settings.work / "seconds" / f"{entry.name}-{settings.scale}-seed{settings.seed}.json"
    begin = time.monotonic()
    try:
        outcome = entry.run(settings)
    except BaseException:
        if _has_parts(settings.work):  # else there is nothing that a later run could go on from
            with suppress(CurvescopeError):  # what stopped the run matters more
                _book(ledger, time.monotonic() - begin)
        raise
    seconds = round(time.monotonic() - begin, 2)
    spent = _book(ledger, seconds)
    record = Record(
        entry=entry.name,
        source=entry.source,
        shows=entry.shows,
        scale=settings.scale,
        seed=settings.seed,
        seconds=seconds,
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=environment(settings.device),
        outcome=outcome,
        total=round(sum(spent), 2),
        runs=len(spent),
    )
    return described(record, entry)


def _has_parts(work: Path) -> bool:
    return work.is_dir() and any(entry.name != ".lock" for entry in work.iterdir())


def _book(ledger: Path, seconds: float) -> tuple[float, ...]:
    """The seconds of all runs, with these."""
    spent = io.load(ledger, Ledger).seconds if ledger.exists() else ()
    spent = (*spent, round(seconds, 2))
    io.make_folder(ledger.parent)
    io.save(ledger, Ledger(spent))
    return spent


def described(record: Record, entry: Entry) -> Record:
    """A record with what the entry says of it now: its words and its checks, not its numbers."""
    checks = tuple(entry.checks(record.outcome))
    return replace(
        record,
        source=entry.source,
        shows=entry.shows,
        subject=entry.subject.get(record.scale, ""),
        reduced=entry.reduced.get(record.scale, ""),
        outcome=replace(record.outcome, checks=checks),
    )


def load(folder: Path, name: str) -> Record | None:
    """What :meth:`Record.save` wrote for an entry; None if there is nothing.

    Numbers are those of the file. The words about them and the checks are those of the catalog,
    where it has the entry.

    Raises:
        CurvescopeError: If the file is damaged or of another version.
    """
    file = folder / name / FILE
    if not file.exists():
        return None
    record = io.load(file, Record, remedy="--again computes it anew")
    if record.entry != name:
        rule = f"is the outcome of {record.entry}"
        raise CurvescopeError(repr(str(file)), rule, remedy="--again computes this one anew")
    entry = next((entry for entry in listing.entries() if entry.name == name), None)
    return record if entry is None else described(record, entry)
