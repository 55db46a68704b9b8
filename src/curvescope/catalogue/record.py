"""An outcome on the disk: ``DIR/PAPER/ENTRY/outcome.json``, complete or not there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.catalogue.entry import Entry, Outcome, Row, Scale, Settings
from curvescope.catalogue.pictures import Picture
from curvescope.experiments.environment import environment

FILE = "outcome.json"
_FORMAT = 1


@dataclass(frozen=True)
class Record:
    """An outcome with what it was made by."""

    entry: str
    source: str
    shows: str
    scale: Scale
    seed: int
    seconds: float
    finished: str  # UTC, ISO 8601
    environment: Mapping[str, Any]
    outcome: Outcome

    @property
    def verdict(self) -> str:
        """How many of the rows with a range of the paper are inside it.

        >>> rows = (Row("a", 1.0, low=0, high=2), Row("b", 3.0, high=2), Row("c", 1.0))
        >>> Record("p/e", "", "", "smoke", 0, 1.0, "", {}, Outcome(rows)).verdict
        '1 of 2 as in the paper'
        """
        judged = [row.agrees for row in self.outcome.rows if row.agrees is not None]
        return f"{sum(judged)} of {len(judged)} as in the paper" if judged else "no range to meet"

    def save(self, folder: Path) -> None:
        """Write ``folder/PAPER/ENTRY/outcome.json`` in one step."""
        place = io.make_folder(folder / self.entry)
        io.write_json(place / FILE, {"format": _FORMAT, **asdict(self)})


def run(entry: Entry, settings: Settings) -> Record:
    """Compute an entry."""
    if settings.scale not in entry.scales:
        msg = (
            f"reproduce: {entry.name} has no scale {settings.scale!r}; "
            f"it has {', '.join(entry.scales)}"
        )
        raise CurvescopeError(msg)
    begin = time.monotonic()
    outcome = entry.run(settings)
    return Record(
        entry=entry.name,
        source=entry.source,
        shows=entry.shows,
        scale=settings.scale,
        seed=settings.seed,
        seconds=round(time.monotonic() - begin, 2),
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=environment(settings.device),
        outcome=outcome,
    )


def load(folder: Path, name: str) -> Record | None:
    """What :meth:`Record.save` wrote for an entry; None if there is nothing.

    Raises:
        CurvescopeError: If the file is damaged or of another version.
    """
    file = folder / name / FILE
    if not file.is_file():
        return None
    found = io.read_json(file)
    try:
        if found.pop("format") != _FORMAT:
            msg = f"{str(file)!r}: written by another version; --again computes it anew"
            raise CurvescopeError(msg)
        outcome = found["outcome"]
        parts = Outcome(
            rows=tuple(Row(**row) for row in outcome["rows"]),
            pictures=tuple(Picture.from_json(picture) for picture in outcome["pictures"]),
            numbers=outcome["numbers"],
            notes=tuple(outcome["notes"]),
        )
        return Record(**{**found, "outcome": parts})
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"{str(file)!r}: not an outcome of the catalogue ({error}); --again computes it anew"
        raise CurvescopeError(msg) from None
