"""Studies in the terminal: a line for each, everything about one, and the printed numbers."""

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
from curvescope.studies import table
from curvescope.studies.catalog import study_named
from curvescope.studies.outcome import Line, Outcome, explanations, lines, load
from curvescope.studies.study import SCALES, Study


def load_study(text: str) -> Study:
    """The study that ``package.module:NAME`` or ``file.py:NAME`` stands for.

    Raises:
        CurvescopeError: If it is none, or has the name of one of the package.
    """
    where = f"reproduce {text!r}"
    study = load_instance(where, text, Study)
    if study_named(study.name) is not None:
        raise CurvescopeError(where, "`name` is that of a study of the package", given=study.name)
    if not re.fullmatch(r"[\w-]+/[\w-]+", study.name):
        rule = "`name` must be a folder and a study in it, such as 'mine/first'"
        raise CurvescopeError(where, rule, given=repr(study.name))
    return study


def show(
    chosen: Sequence[Study], out: Path, console: Console, *, detailed: bool, as_json: bool
) -> None:
    """Print studies with their outcomes in ``out``."""
    listed = [(study, load(out, study.name)) for study in chosen]
    if as_json:
        typer.echo(json.dumps([_described(*pair, out) for pair in listed], indent=2))
    elif detailed:
        for study, outcome in listed:
            _show_study(study, outcome, out, console)
    else:
        for line in listing(listed, console.width if console.is_terminal else None):
            console.print(line, markup=False)
        console.print("times are rough; curvescope reproduce show NAME says what a study shows")


def listing(listed: Sequence[tuple[Study, Outcome | None]], width: int | None) -> list[str]:
    """A line for each study: name, time at each scale, outcome, source.

    Args:
        listed: Studies with their outcomes.
        width: Longer lines are cut off with an ellipsis; a pipe, without a width, gets them whole.
    """
    rows = [["study", *SCALES, "here", "source"]]
    for study, outcome in listed:
        times = [
            study.levels[scale].cost.partition(",")[0] if scale in study.levels else "–"
            for scale in SCALES
        ]
        rows.append([study.name, *times, _status(study, outcome), study.source])
    if all(outcome is None for _, outcome in listed):
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


def _status(study: Study, outcome: Outcome | None) -> str:
    """The scale of the outcome, and how many of the paper's numbers and sentences it meets."""
    if outcome is None:
        return ""
    tallies = table.tallies(lines(study, outcome))
    whole = sum((t for (kind, setting), t in tallies.items() if setting), table.Tally())
    return f"{outcome.scale} {whole.hold}/{whole.judged}" if whole.judged else outcome.scale


def _described(study: Study, outcome: Outcome | None, out: Path) -> dict[str, Any]:
    levels = {
        scale: {"cost": level.cost, "subject": level.subject, "reduced": level.reduced}
        for scale, level in study.levels.items()
    }
    about = {"name": study.name, "source": study.source, "shows": study.shows, "scales": levels}
    if outcome is None:
        return {**about, "outcome": None}
    return {**about, "outcome": described(study, outcome, out)}


def described(study: Study, outcome: Outcome, out: Path) -> dict[str, Any]:
    """An outcome as JSON: its lines, and where it lies."""
    shown = lines(study, outcome, explanations(out, study.name))
    return {
        "study": study.name,
        "scale": outcome.scale,
        "seed": outcome.seed,
        "seconds": outcome.seconds,
        "finished": outcome.finished,
        "lines": [{**asdict(line), "agrees": line.agrees} for line in shown],
        "numbers": dict(outcome.numbers),
    }


def _show_study(study: Study, outcome: Outcome | None, out: Path, console: Console) -> None:
    console.print(f"[bold]{study.name}[/bold]  {escape(study.source)}")
    console.print(study.shows, markup=False)
    show_scales(study, console)
    if outcome is None:
        say = f"  not in {out}; curvescope reproduce {study.name} computes it"
    else:
        say = f"  here: {_status(study, outcome)}: {out / study.name}"
    console.print(say, markup=False)


def show_scales(study: Study, console: Console, only: str = "") -> None:
    """Print what each scale takes, and what it has smaller than the paper."""
    for scale, level in study.levels.items():
        if only and scale != only:
            continue
        console.print(f"  {scale:<5}  {level.cost}: {level.subject}", markup=False)
        if level.reduced:
            than = "meant" if study.own else "in the paper"
            console.print(f"         smaller than {than}: {level.reduced}", markup=False)


def show_outcome(study: Study, outcome: Outcome, out: Path, console: Console) -> None:
    """Print an outcome: ours beside what it is compared with."""
    from curvescope.reports.reproduction import summary

    shown = lines(study, outcome, explanations(out, study.name))
    console.print(f"[bold]{study.name}[/bold]: {escape(f'{study.source}. {study.shows}')}")
    printed = Table()
    for title, justify in (("", "left"), ("expected", "right"), ("ours", "right"), ("", "left")):
        printed.add_column(title, justify=cast(Any, justify))
    for line in shown:
        ours = "–" if line.ours is None else f"{line.ours:.4g}"
        printed.add_row(escape(line.value), table.expected(line), ours, _words(line))
    console.print(printed)
    console.print(summary(shown), markup=False)
    console.print(
        f"{outcome.scale}, seed {outcome.seed}, {outcome.seconds:.1f} s: {out / study.name}",
        markup=False,
    )


def _words(line: Line) -> str:
    verdict = {True: "[green]agrees[/green]", False: "[red]differs[/red]", None: ""}[line.agrees]
    kind = f"({line.criterion.kind})" if line.criterion is not None and verdict else ""
    return "; ".join(part for part in (f"{verdict} {kind}".strip(), escape(line.note)) if part)


def show_printed(chosen: Sequence[Study], out: Path, *, as_json: bool) -> None:
    """Print every number of the papers beside ours, as Markdown or JSON."""
    entries = tuple(table.printed_numbers(chosen, out))
    if as_json:
        typer.echo(json.dumps([table.plain(entry) for entry in entries], indent=2))
    else:
        typer.echo(table.markdown(entries), nl=False)
