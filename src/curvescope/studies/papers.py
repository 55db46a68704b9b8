"""The papers: their figures and tables, and which studies compute them; and studies of none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.studies.outcome import Outcome
from curvescope.studies.study import Study


@dataclass(frozen=True)
class Printed:
    """A figure or table: its number, what it shows, and what of it is not computed, and why."""

    kind: str  # "fig." or "table"
    number: str
    about: str
    remark: str = ""


@dataclass(frozen=True)
class Paper:
    """A paper, or a version of one, with all its figures and tables."""

    key: str  # "wu2020"
    title: str
    citation: str
    items: tuple[Printed, ...]

    @classmethod
    def read(cls, file: Path) -> tuple[Paper, ...]:
        """The papers of a ``paper.toml``: a table for each, with ``items``.

        Raises:
            CurvescopeError: If something is missing.
        """
        table = io.parse_toml(file.read_text(encoding="utf-8"), f"{file.parent.name}/{file.name}")
        return tuple(cls._of(key, entry) for key, entry in table.items())

    @classmethod
    def _of(cls, key: str, entry: Mapping[str, object]) -> Paper:
        where = f"{key} in paper.toml"
        items = entry.get("items")
        if not isinstance(items, Sequence) or not {"title", "citation"} <= set(entry):
            raise CurvescopeError(where, "needs `title`, `citation` and `items`")
        return cls(key, str(entry["title"]), str(entry["citation"]), tuple(map(_printed, items)))


@dataclass(frozen=True)
class Topic:
    """What the studies of a folder are about, where they reproduce no paper."""

    key: str  # "language"
    title: str
    about: str
    page: str = ""  # of the documentation, below ``docs``

    @classmethod
    def read(cls, file: Path) -> tuple[Topic, ...]:
        """The topics of a ``topic.toml``: a table for each.

        Raises:
            CurvescopeError: If something is missing.
        """
        where = f"{file.parent.name}/{file.name}"
        table = io.parse_toml(file.read_text(encoding="utf-8"), where)
        for key, entry in table.items():
            if not {"title", "about"} <= set(entry) <= {"title", "about", "page"}:
                raise CurvescopeError(f"{key} in {where}", "needs `title` and `about`")
        return tuple(cls(key, **entry) for key, entry in table.items())


def _printed(row: Sequence[str]) -> Printed:
    """From ``["fig. 5a", "overlap of fc1", "100 outputs are missing"]``.

    >>> _printed(["table 2", "data sets"])
    Printed(kind='table', number='2', about='data sets', remark='')
    """
    label, about, *remark = row
    kind, _, number = label.rpartition(" ")
    if kind not in ("fig.", "table"):
        raise CurvescopeError(
            "paper.toml", "an item begins with 'fig. N' or 'table N'", given=repr(label)
        )
    return Printed(kind, number, about, *remark)


def covering(studies: Iterable[Study], paper: str, item: Printed) -> list[tuple[Study, str]]:
    """The studies that compute a figure or table, each with the part that it computes."""
    return [
        (study, each.part)
        for study in studies
        for each in study.reproduces
        if each.paper == paper
        and (each.figure if item.kind == "fig." else each.table) == item.number
    ]


def page(
    papers: Iterable[Paper],
    topics: Iterable[Topic],
    studies: Iterable[Study],
    outcomes: Mapping[str, Outcome],
) -> str:
    """All figures and tables with their studies and what was computed, in Markdown."""
    studies = tuple(studies)
    lines = [
        "# The papers' figures and tables",
        "",
        "Every figure and table of the papers, the study that computes it (`curvescope reproduce",
        "NAME`), and what has been computed and committed below `reproductions/`: at the paper's",
        "setting (network, data and training), at a reduced one, or not. Having a study is not",
        "having been computed. Studies of no paper stand at the end.",
    ]
    for paper in papers:
        rows, counts = _rows(paper, studies, outcomes)
        total = len(paper.items)
        lines += [
            "",
            f"## {paper.title}",
            "",
            f"{paper.citation} (`{paper.key}`)",
            "",
            f"Of {total} figures and tables {counts['study']} have a study; "
            f"{counts['paper']} have been computed at the paper's setting, "
            f"{counts['reduced']} at a reduced one only.",
            "",
            "| | shows | study | computed | remarks |",
            "|---|---|---|---|---|",
            *rows,
        ]
    for topic in topics:
        lines += ["", *_topic(topic, studies, outcomes)]
    return "\n".join(lines) + "\n"


def _topic(
    topic: Topic, studies: Iterable[Study], outcomes: Mapping[str, Outcome]
) -> Iterator[str]:
    """Its studies, what they show, and at which scale they were computed."""
    yield from (f"## {topic.title}: no paper", "", f"{topic.about} (`{topic.key}`)")
    if topic.page:
        yield f"[What came out]({topic.page})."
    yield from ("", "| study | shows | computed |", "|---|---|---|")
    for study in studies:
        if study.name.partition("/")[0] == topic.key:
            outcome = outcomes.get(study.name)
            scale = "no" if outcome is None else f"scale `{outcome.scale}`"
            yield f"| `{study.name}` | {study.shows} | {scale} |"


def _rows(
    paper: Paper, studies: Sequence[Study], outcomes: Mapping[str, Outcome]
) -> tuple[list[str], dict[str, int]]:
    rows, counts = [], {"study": 0, "paper": 0, "reduced": 0}
    for item in paper.items:
        pairs = covering(studies, paper.key, item)
        names = ", ".join(
            f"`{study.name}`" + (f" ({part})" if part else "") for study, part in pairs
        )
        settings = [
            study.levels[outcome.scale].setting
            for study, _ in pairs
            if (outcome := outcomes.get(study.name)) is not None and outcome.scale in study.levels
        ]
        best = next((s for s in ("paper", "reduced") if s in settings), "")
        counts["study"] += bool(pairs)
        if best:
            counts[best] += 1
        said = {"paper": "paper's setting", "reduced": "reduced", "": "no" if pairs else "–"}[best]
        rows.append(
            f"| {item.kind} {item.number} | {item.about} | {names or '–'} | {said} "
            f"| {item.remark} |"
        )
    return rows, counts
