"""The catalog in the terminal: a line for each entry, or everything about one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from curvescope.errors import CurvescopeError
from curvescope.experiments.load import load_instance
from curvescope.reports.reproduction import published
from curvescope.studies.entry import SCALES, Entry
from curvescope.studies.listing import entries
from curvescope.studies.record import Record, load

_TIME = re.compile(r"\b(\d+|a|ten) (s|seconds?|minutes?|hours?)\b|\bfor (hours)\b")
_UNITS = {"s": "s", "m": "min", "h": "h"}


def load_entry(text: str) -> Entry:
    """The entry that ``package.module:NAME`` or ``file.py:NAME`` stands for.

    Raises:
        CurvescopeError: If it is none, or has the name of one of the catalog.
    """
    where = f"reproduce {text!r}"
    entry = load_instance(where, text, Entry)
    if any(entry.name == other.name for other in entries()):
        raise CurvescopeError(where, "`name` is that of an entry of the catalog", given=entry.name)
    if not re.fullmatch(r"[\w-]+/[\w-]+", entry.name):
        rule = "`name` must be a folder and an entry in it, such as 'mine/first'"
        raise CurvescopeError(where, rule, given=repr(entry.name))
    return entry


def show(
    chosen: Sequence[Entry], out: Path, console: Console, *, detailed: bool, as_json: bool
) -> None:
    """Print entries with their outcomes in ``out``."""
    listed = [(entry, load(out, entry.name)) for entry in chosen]
    if as_json:
        typer.echo(json.dumps([_described(*pair) for pair in listed], indent=2))
    elif detailed:
        for entry, record in listed:
            _show_entry(entry, record, out, console)
    else:
        for line in lines(listed, console.width if console.is_terminal else None):
            console.print(line, markup=False)
        console.print("times are rough; curvescope reproduce show NAME says what an entry shows")


def lines(listed: Sequence[tuple[Entry, Record | None]], width: int | None) -> list[str]:
    """A line for each entry: name, time at each scale, outcome, source.

    Args:
        listed: Entries with their outcomes.
        width: Longer lines are cut off with an ellipsis; a pipe, without a width, gets them whole.
    """
    rows = [["entry", *SCALES, "here", "source"]]
    for entry, record in listed:
        times = [brief(entry.cost.get(scale, "")) for scale in SCALES]
        rows.append([entry.name, *times, "" if record is None else _status(record), entry.source])
    if all(record is None for _, record in listed):
        rows = [[*row[:4], row[5]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = []
    for row in rows:
        cells = [
            cell.rjust(room) if 1 <= i <= len(SCALES) else cell.ljust(room)
            for i, (cell, room) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        if width is not None and len(line) > width:
            line = f"{line[: width - 1]}…"
        texts.append(line)
    return texts


def brief(cost: str) -> str:
    """The time in the text of an entry about its cost.

    >>> [brief(text) for text in ("4 s, digits", "MNIST: ten minutes", "a GPU for hours", "", "?")]
    ['4 s', '10 min', 'hours', '–', '?']
    """
    if not cost:
        return "–"
    match = _TIME.search(cost)
    if match is None:
        return "GPU" if "GPU" in cost else "?"
    if match[3]:
        return match[3]
    number = {"a": "1", "ten": "10"}.get(match[1], match[1])
    return f"{number} {_UNITS[match[2][0]]}"


def _status(record: Record) -> str:
    """The scale of the outcome, and how many of the paper's ranges it meets."""
    judged = [row.agrees is True for row in record.outcome.judged]
    return f"{record.scale} {sum(judged)}/{len(judged)}" if judged else record.scale


def _described(entry: Entry, record: Record | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "source": entry.source,
        "shows": entry.shows,
        "cost": dict(entry.cost),
        "subject": dict(entry.subject),
        "reduced": dict(entry.reduced),
        "outcome": None
        if record is None
        else {
            "scale": record.scale,
            "seed": record.seed,
            "rows": [asdict(row) for row in record.outcome.rows],
            "checks": [asdict(row) for row in record.outcome.checks],
        },
    }


def _show_entry(entry: Entry, record: Record | None, out: Path, console: Console) -> None:
    console.print(f"[bold]{entry.name}[/bold]  {escape(entry.source)}")
    console.print(entry.shows, markup=False)
    for scale, cost in entry.cost.items():
        console.print(f"  {scale:<5}  {cost}", markup=False)
        if reduced := entry.reduced.get(scale):
            console.print(f"         smaller than in the paper: {reduced}", markup=False)
    if record is None:
        console.print(
            f"  not in {out}; curvescope reproduce {entry.name} computes it", markup=False
        )
    else:
        place = out / entry.name
        console.print(f"  here: {record.scale}, {record.verdict}: {place}", markup=False)


def show_record(record: Record, out: Path, console: Console) -> None:
    """Print an outcome: the paper's numbers beside ours, and the remarks."""
    console.print(f"[bold]{record.entry}[/bold]: {escape(f'{record.source}. {record.shows}')}")
    table = Table()
    for title, justify in (("", "left"), ("paper", "right"), ("ours", "right"), ("", "left")):
        table.add_column(title, justify=cast(Any, justify))
    for row in (*record.outcome.rows, *record.outcome.checks):
        verdict = {True: "[green]as in the paper[/green]", False: "[red]differs[/red]", None: ""}
        words = "; ".join(part for part in (verdict[row.agrees], escape(row.note)) if part)
        table.add_row(escape(row.what), published(row), f"{row.ours:.4g}", words)
    console.print(table)
    for note in record.outcome.notes:
        console.print(f"- {note}", markup=False)
    console.print(
        f"{record.scale}, seed {record.seed}, {record.seconds:.1f} s: {out / record.entry}",
        markup=False,
    )
