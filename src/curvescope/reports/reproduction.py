"""The folder of a reproduction: a page in Markdown and the pictures, from its outcome alone."""

from __future__ import annotations

from pathlib import Path

from curvescope.figures import style
from curvescope.figures.draw import draw
from curvescope.io import atomic, make_folder
from curvescope.studies.entry import Row
from curvescope.studies.listing import entries
from curvescope.studies.record import FILE, Record, load


def write(folder: Path, record: Record) -> Path:
    """Write ``outcome.json``, the pictures (``.png`` and ``.svg``) and ``README.md``.

    The outcome comes after the page: where it is, the entry is finished. ``folder/INDEX.md`` then
    lists all entries that are there. Returns the path of the page.
    """
    place = make_folder(folder / record.entry)
    for picture in record.outcome.pictures:
        figure = draw(picture, title=record.subject)
        for kind in ("png", "svg"):
            style.save(figure, place / f"{picture.name}.{kind}")
    page = place / "README.md"
    _write(page, markdown(record))
    record.save(folder)
    _write(folder / "INDEX.md", index(folder))
    return page


def markdown(record: Record) -> str:
    """The page of one entry."""
    outcome = record.outcome
    device = record.environment.get("device", "cpu")
    lines = [
        f"# {record.entry}",
        "",
        f"{record.source}. {record.shows}",
        "",
        f"Made by `curvescope reproduce {record.entry} --scale {record.scale} --seed {record.seed}`"
        f" in {spent(record)} ({device}, torch {record.environment.get('torch', '?')}); "
        "everything is in `outcome.json`.",
        "",
    ]
    if record.reduced:
        smaller = f"Smaller than in the paper at this scale: {record.reduced}."
        lines += [
            f"**{style.pretty(record.subject)}.** {smaller}" if record.subject else smaller,
            "",
        ]
    lines += [table(outcome.rows)]
    if outcome.checks:
        lines += ["What the paper says in words, as criteria:", "", table(outcome.checks)]
    for note in outcome.notes:
        lines += [f"- {note}"]
    for picture in outcome.pictures:
        lines += ["", f"![{picture.name}]({picture.name}.png)", "", picture.caption]
    return "\n".join(lines) + "\n"


def table(rows: tuple[Row, ...]) -> str:
    """The paper's numbers beside ours, in Markdown.

    >>> print(table((Row("peak", 121.0, paper=120, low=115, high=125),)))
    | | paper | ours | as in the paper |
    |---|---|---|---|
    | peak | 120 (115 … 125) | **121** | yes |
    <BLANKLINE>
    """
    lines = ["| | paper | ours | as in the paper |", "|---|---|---|---|"]
    for row in rows:
        verdict = {True: "yes", False: "**no**", None: ""}[row.agrees]
        note = f"{verdict}; {row.note}" if verdict and row.note else verdict or row.note
        what, note = (text.replace("|", r"\|") for text in (row.what, note))  # |λ| is no column
        lines.append(f"| {what} | {published(row)} | **{row.ours:.4g}** | {note} |")
    return "\n".join(lines) + "\n"


def published(row: Row) -> str:
    """The paper's value and range in words."""
    value = "" if row.paper is None else f"{row.paper:.6g}"
    if row.low is None and row.high is None:
        return value or "–"
    if row.low is None:
        span = f"≤ {row.high:.6g}"
    elif row.high is None:
        span = f"≥ {row.low:.6g}"
    else:
        span = f"{row.low:.6g} … {row.high:.6g}"
    return f"{value} ({span})" if value else span


TITLE = "# The catalog, and what is here of it"


def index(folder: Path) -> str:
    """All entries of the catalog and what else the folder holds, with the sums."""
    lines = [
        TITLE,
        "",
        "`curvescope reproduce list` shows all entries, `curvescope reproduce NAME --scale SCALE`",
        "computes one. Rows are numbers beside the paper's and its sentences as criteria. Judged",
        "are those with a range, the paper's own or one that the row calls ours; the others stand",
        "beside a number of the paper without a range, or are there to be read.",
        "",
        "| entry | source | scale | judged | rows | time |",
        "|---|---|---|---|---|---|",
    ]
    rows = judged = met = here = 0
    sources = {entry.name: entry.source for entry in entries()}
    others = {"/".join(file.parts[-3:-1]) for file in folder.glob(f"*/*/{FILE}")} - set(sources)
    for name in (*sources, *sorted(others)):
        record = load(folder, name)
        if record is None:
            lines.append(f"| {name} | {sources[name]} | – | not computed here | | |")
            continue
        outcome = record.outcome
        count = len(outcome.rows) + len(outcome.checks)
        here, rows, judged = here + 1, rows + count, judged + len(outcome.judged)
        met += sum(row.agrees is True for row in outcome.judged)
        link = f"[{name}]({name}/README.md)"
        lines.append(
            f"| {link} | {record.source} | {record.scale} | {record.verdict} | {count} "
            f"| {spent(record)} |"
        )
    lines += [
        f"| {here} entries | | | {met} of {judged} as in the paper | {rows} | |",
        "",
        "Time is that of all runs together, where it is known, else that of the last one, which",
        "found networks and parts finished that others or earlier runs had computed.",
    ]
    return "\n".join(lines) + "\n"


def spent(record: Record) -> str:
    """How long it took, in words.

    >>> from dataclasses import replace
    >>> from curvescope.studies.entry import Outcome
    >>> record = Record("p/e", "", "", "small", 0, 12.0, "", {}, Outcome(()))
    >>> spent(record), spent(replace(record, total=312.0, runs=3))
    ('12.0 s (last run)', '5.2 min in 3 runs')
    """
    if record.total is None:
        return f"{_time(record.seconds)} (last run)"
    return _time(record.total) + (f" in {record.runs} runs" if (record.runs or 1) > 1 else "")


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
