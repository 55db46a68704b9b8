"""Every number that the papers print beside ours, and how many are matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from curvescope.studies.outcome import Line, Status, explanations, lines, load
from curvescope.studies.study import Study

STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Entry:
    """A printed number, and the study that answers for it."""

    study: Study
    line: Line


@dataclass(frozen=True)
class Tally:
    """How many criteria of a kind hold in one setting."""

    hold: int = 0
    judged: int = 0

    def __add__(self, other: Tally) -> Tally:
        """The sum of both."""
        return Tally(self.hold + other.hold, self.judged + other.judged)

    def __str__(self) -> str:
        """``3 of 4``; a dash where there is nothing to judge.

        >>> print(Tally(3, 4), Tally())
        3 of 4 –
        """
        return f"{self.hold} of {self.judged}" if self.judged else "–"


COLUMNS = (
    ("number", "paper"),
    ("direction", "paper"),
    ("number", "reduced"),
    ("direction", "reduced"),
    ("direction", "other"),
    ("ours", ""),
    ("identity", ""),
)
"""What is counted apart: kind and setting; an empty setting stands for both."""


def tallies(shown: Iterable[Line]) -> dict[tuple[str, str], Tally]:
    """Criteria that hold, by kind and setting."""
    sums = dict.fromkeys(COLUMNS, Tally())
    for line in shown:
        if line.criterion is None or line.agrees is None:
            continue
        kind = line.criterion.kind
        key = (kind, line.setting if kind in ("number", "direction") else "")
        sums[key] += Tally(int(line.agrees), 1)
    return sums


def printed_numbers(studies: Iterable[Study], folder: Path) -> Iterator[Entry]:
    """All numbers that the papers print, with what the outcomes below ``folder`` have of them."""
    for study in studies:
        shown = lines(study, load(folder, study.name), explanations(folder, study.name))
        for line in shown:
            if line.criterion is not None and line.criterion.kind == "number":
                yield Entry(study, line)


def counts(entries: Iterable[Entry]) -> Mapping[Status, int]:
    """How many printed numbers there are of each status."""
    counter = Counter(entry.line.status for entry in entries)
    return {status: counter[status] for status in STATUSES}


def markdown(entries: Iterable[Entry]) -> str:
    """The table, with the sums above it."""
    entries = tuple(entries)
    sums = ", ".join(f"{number} {status}" for status, number in counts(entries).items())
    rows = [
        "# Every printed number",
        "",
        f"{len(entries)} numbers: {sums}.",
        "",
        "*Matched*: in the range that the paper prints, or within the stated tolerance, which is",
        "the project's. *Explained*: not, and a cause was shown (`explained.toml`). *Reduced",
        "setting*: not, and network, data or training are others, so that it is no evidence.",
        "*Unexplained*: not, at the paper's setting. `curvescope reproduce index` writes it.",
        "",
        "| study | number | where | paper | ours | ratio | setting | status | cause |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows += [_row(entry) for entry in entries]
    return "\n".join(rows) + "\n"


def plain(entry: Entry) -> dict[str, object]:
    """One printed number as JSON."""
    line, criterion = entry.line, entry.line.criterion
    assert criterion is not None, "an entry has a criterion"
    low, high = criterion.bounds
    return {
        "study": entry.study.name,
        "number": line.value,
        "where": criterion.cite,
        "paper": criterion.paper,
        "low": low,
        "high": high,
        "ours": line.ours,
        "setting": line.setting,
        "status": line.status,
        "cause": line.explained or criterion.missing,
    }


def expected(line: Line) -> str:
    """The paper's number with its range or tolerance, in words."""
    criterion = line.criterion
    if criterion is None:
        return "–"
    value = "" if criterion.paper is None else f"{criterion.paper:.6g}"
    low, high = criterion.bounds
    if criterion.tolerance is not None and criterion.paper is not None:
        return f"{value} ± {100 * criterion.tolerance:g} %"
    if low is not None and high is not None:
        span = f"{low:.6g} … {high:.6g}"
    elif low is not None:
        span = f"≥ {low:.6g}"
    elif high is not None:
        span = f"≤ {high:.6g}"
    else:
        return value or "–"
    return f"{value} ({span})" if value else span


def escaped(text: str) -> str:
    r"""A text in a cell of a Markdown table: ``|λ|`` is no column.

    >>> escaped("|λ|")
    '\\|λ\\|'
    """
    return text.replace("|", r"\|")


def _row(entry: Entry) -> str:
    line, criterion = entry.line, entry.line.criterion
    assert criterion is not None, "an entry has a criterion"
    ours = "–" if line.ours is None else f"{line.ours:.4g}"
    ratio = "–"
    if line.ours is not None and criterion.paper:
        ratio = f"{line.ours / criterion.paper:.3g}"
    cells = (
        entry.study.name, line.value, criterion.cite, expected(line), ours, ratio, line.setting,
        line.status, line.explained or ("" if line.agrees is not None else line.note),
    )  # fmt: skip
    return "| " + " | ".join(map(escaped, cells)) + " |"
