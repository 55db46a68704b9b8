"""An outcome on the disk: ``DIR/PAPER/STUDY/outcome.json``, complete or not there.

It holds what was computed and by what, and no verdict: criteria are those of the study as it
stands and are applied when the outcome is read. Pictures lie beside it as data (``pictures.json``),
so that they can be drawn again. ``explained.toml``, written by hand, gives for a number that does
not agree the cause that was shown; ``notes.md`` is what else is to be said, with dates.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Literal

from curvescope import io
from curvescope._checks import AnyFloat
from curvescope.errors import CurvescopeError
from curvescope.experiments.environment import environment
from curvescope.figures.model import Picture
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.study import Criterion, Scale, Setting, Study

FILE = "outcome.json"
PICTURES = "pictures.json"
EXPLAINED = "explained.toml"
NOTES = "notes.md"

Status = Literal["matched", "explained", "reduced setting", "unexplained", "not computed"]


@dataclass(frozen=True)
class Number:
    """One number of an outcome."""

    ours: AnyFloat
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a study computed, and what it was made by."""

    FORMAT: ClassVar[int] = 1

    study: str
    scale: Scale
    seed: int
    values: Mapping[str, Number]
    numbers: Mapping[str, Any]  # everything else, as plain JSON
    seconds: float  # of the run that finished it
    finished: str  # UTC, ISO 8601
    environment: Mapping[str, Any]
    total: float | None = None  # seconds of all runs in its work folder; None: not known
    runs: int | None = None  # how many these were


@dataclass(frozen=True)
class Line:
    """A number of ours beside what it is compared with; either may be missing."""

    value: str
    ours: float | None
    note: str
    criterion: Criterion | None
    setting: Setting
    explained: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether ours meets the criterion; None where there is nothing to judge."""
        if self.criterion is None or self.ours is None:
            return None
        return self.criterion.agrees(self.ours)

    @property
    def status(self) -> Status:
        """What is to be said of a printed number."""
        if self.agrees is None:
            return "not computed"
        if self.agrees:
            return "matched"
        if self.explained:
            return "explained"
        return "unexplained" if self.setting == "paper" else "reduced setting"


@dataclass(frozen=True)
class Pictures:
    """The pictures of an outcome, as data."""

    pictures: tuple[Picture, ...]


def compute(run: Run) -> tuple[Outcome, tuple[Picture, ...]]:
    """Run a study.

    ``run.work`` keeps how long each run took, also of those that were stopped: the total of an
    outcome is the time that all runs together spent on it.
    """
    study = run.study
    ledger = run.work / "seconds" / f"{study.name}-{run.scale}-seed{run.seed}.json"
    begin = time.monotonic()
    try:
        result = study.run(run)
    except BaseException:
        if _has_parts(run.work):  # else there is nothing that a later run could go on from
            with suppress(CurvescopeError):  # what stopped the run matters more
                _book(ledger, time.monotonic() - begin)
        raise
    seconds = round(time.monotonic() - begin, 2)
    spent = _book(ledger, seconds)
    outcome = Outcome(
        study=study.name,
        scale=run.scale,
        seed=run.seed,
        values=dict(_numbers(result)),
        numbers=_plain(result.numbers),
        seconds=seconds,
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=environment(run.device),
        total=round(sum(spent), 2),
        runs=len(spent),
    )
    return outcome, result.pictures


def _numbers(result: Result) -> Iterator[tuple[str, Number]]:
    for name, value in result.values.items():
        whole = value if isinstance(value, Value) else Value(value)
        yield name, Number(float(whole.number), whole.note)


def _plain(numbers: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(io.parse_json(io.json_text(Path(FILE), dict(numbers)), FILE))


def _has_parts(work: Path) -> bool:
    return work.is_dir() and any(entry.name != ".lock" for entry in work.iterdir())


@dataclass(frozen=True)
class Ledger:
    """How long each run of a study took, also of those that were stopped."""

    seconds: tuple[float, ...]


def _book(ledger: Path, seconds: float) -> tuple[float, ...]:
    """The seconds of all runs, with these."""
    spent = io.load(ledger, Ledger).seconds if ledger.exists() else ()
    spent = (*spent, round(seconds, 2))
    io.make_folder(ledger.parent)
    io.save(ledger, Ledger(spent))
    return spent


def load(folder: Path, name: str) -> Outcome | None:
    """The outcome of a study below ``folder``; None if there is none.

    Raises:
        CurvescopeError: If the file is damaged or of another version.
    """
    file = folder / name / FILE
    if not file.exists():
        return None
    outcome = load_file(file)
    if outcome.study != name:
        rule = f"is the outcome of {outcome.study}"
        raise CurvescopeError(repr(str(file)), rule, remedy="--again computes this one anew")
    return outcome


def load_file(file: Path) -> Outcome:
    """An outcome in a file, of whatever study.

    Raises:
        CurvescopeError: If the file is damaged or of another version.
    """
    return io.load(file, Outcome, remedy="--again computes it anew")


def load_pictures(folder: Path, name: str) -> tuple[Picture, ...] | None:
    """The pictures of an outcome as data; None where they were not kept."""
    file = folder / name / PICTURES
    return io.load(file, Pictures).pictures if file.exists() else None


def explanations(folder: Path, name: str) -> Mapping[str, str]:
    """Causes of disagreements, by the number's name."""
    file = folder / name / EXPLAINED
    if not file.exists():
        return {}
    table = io.parse_toml(file.read_text(encoding="utf-8"), repr(str(file)))
    for value, cause in table.items():
        if not isinstance(cause, str):
            raise CurvescopeError(repr(str(file)), "gives each number a sentence", given=value)
    return table


def lines(
    study: Study, outcome: Outcome | None, explained: Mapping[str, str] | None = None
) -> tuple[Line, ...]:
    """Ours beside the paper's: numbers in the order of the outcome, then what was not computed."""
    explained = explained or {}
    if outcome is None:
        return tuple(
            Line(c.value, None, c.missing, c, c.setting or ("other" if study.own else "paper"))
            for c in study.criteria
            if c.kind == "number"
        )
    setting = study.setting(outcome.scale)
    values = dict(outcome.values)
    if study.derive is not None:
        ours = {name: number.ours for name, number in values.items()}
        derived = study.derive(ours, outcome.numbers)
        values |= {name: Number(float(value)) for name, value in derived.items()}
    criteria: dict[str, list[Criterion]] = {}
    for criterion in study.criteria:
        if outcome.scale in criterion.at or criterion.missing:
            criteria.setdefault(criterion.value, []).append(criterion)
    made = []
    for name, number in values.items():
        own_criteria: list[Criterion | None] = [*criteria.pop(name, [])]
        for c in own_criteria or [None]:
            own = setting if c is None else c.setting or setting
            made.append(Line(name, number.ours, number.note, c, own, explained.get(name, "")))
    rest = [
        Line(c.value, None, c.missing or "not at this scale", c, c.setting or setting)
        for group in criteria.values()
        for c in group
    ]
    return (*made, *rest)
