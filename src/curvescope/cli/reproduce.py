"""``curvescope reproduce``: the catalogue of the papers' figures and tables."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from curvescope._checks import CurvescopeError, one_of
from curvescope.catalogue.entry import SCALES, Entry, Scale, Settings
from curvescope.catalogue.listing import entries, find
from curvescope.catalogue.record import Record, load, run
from curvescope.cli.progress import Display
from curvescope.experiments.load import choose_device
from curvescope.reports.reproduction import published, write


def reproduce(
    name: Annotated[
        str, typer.Argument(help="An entry, a paper, a pattern such as '*/table-*', or list.")
    ] = "list",
    scale: Annotated[
        str,
        typer.Option(help="smoke: seconds; small: minutes on a CPU; paper: its setting, a GPU."),
    ] = "smoke",
    root: Annotated[Path | None, typer.Option(help="The folder with the data files.")] = None,
    out: Annotated[
        Path, typer.Option(help="Results go to OUT/PAPER/ENTRY, and are found there.")
    ] = Path("runs/reproductions"),
    work: Annotated[
        Path | None,
        typer.Option(help="Trained networks and finished parts; OUT/work if none."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Compute finished entries anew.")] = False,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only write page and pictures again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Compute a figure or table of the papers and set its numbers beside ours.

    A finished entry is not computed again; an unfinished one goes on from its finished parts.

    \b
    curvescope reproduce list
    curvescope reproduce dissecting-hessian/random-two-layer
    curvescope reproduce flatness --scale small --root ../data
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    console = Console(highlight=False, soft_wrap=True)
    if name == "list":
        _list(out, console, as_json=as_json)
        return
    settings = Settings(
        scale=cast(Scale, one_of("reproduce", "--scale", scale, SCALES)),
        work=work or out / "work",
        root=root,
        device=str(choose_device(device)),
        seed=seed,
    )
    records = []
    for entry in find(name):
        record = _one(entry, settings, out, again=again, redraw=redraw, quiet=quiet or as_json)
        records.append(record)
        if not as_json:
            _show(record, out, console)
    if as_json:
        typer.echo(json.dumps([asdict(record) for record in records], indent=2))


def _one(
    entry: Entry, settings: Settings, out: Path, *, again: bool, redraw: bool, quiet: bool
) -> Record:
    """The record of one entry: found, drawn again, or computed."""
    place = str(out / entry.name)
    found = None if again else load(out, entry.name)
    if redraw:
        if found is None:
            msg = f"reproduce: {place!r} has no outcome to draw; leave out --redraw and --again"
            raise CurvescopeError(msg)
        write(out, found)
        return found
    if found is not None:
        if (found.scale, found.seed) != (settings.scale, settings.seed):
            msg = (
                f"reproduce: {place!r} holds scale {found.scale!r}, seed {found.seed}; "
                "name another --out, or replace it by --again"
            )
            raise CurvescopeError(msg)
        return found
    with Display(quiet=quiet) as display:
        display.stage(entry.name)

        def tell(text: str) -> None:
            display.stage(f"{entry.name}: {text}")

        record = run(entry, replace(settings, tell=tell))
    write(out, record)
    return record


def _show(record: Record, out: Path, console: Console) -> None:
    console.print(f"[bold]{record.entry}[/bold]: {escape(f'{record.source}. {record.shows}')}")
    table = Table()
    for title, justify in (("", "left"), ("paper", "right"), ("ours", "right"), ("", "left")):
        table.add_column(title, justify=cast(Any, justify))
    for row in record.outcome.rows:
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


def _list(out: Path, console: Console, *, as_json: bool) -> None:
    """All entries, and what ``out`` holds of them."""
    listed = [(entry, load(out, entry.name)) for entry in entries()]
    if as_json:
        described = [
            {
                "name": entry.name,
                "source": entry.source,
                "shows": entry.shows,
                "cost": dict(entry.cost),
                "outcome": None
                if record is None
                else {
                    "scale": record.scale,
                    "seed": record.seed,
                    "rows": [asdict(row) for row in record.outcome.rows],
                },
            }
            for entry, record in listed
        ]
        typer.echo(json.dumps(described, indent=2))
        return
    for entry, record in listed:
        console.print(f"[bold]{entry.name}[/bold]  {escape(entry.source)}")
        console.print(f"  {entry.shows}", markup=False)
        for scale, cost in entry.cost.items():
            console.print(f"  {scale:<5}  {cost}", markup=False)
        if record is not None:
            console.print(f"  here: {record.scale}, {record.verdict}", markup=False)
