"""``curvescope table``: the results of a folder's runs as one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from curvescope._numbers import short
from curvescope.cli.options import Debug, Quiet
from curvescope.errors import CurvescopeError


def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the runs.")] = Path(
        "runs"
    ),
    columns: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these: run,plan.lr,H.largest."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write it as CSV; - prints it.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write it as Parquet.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of rows.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The results of all runs below a folder: a row for each, named columns.

    Columns are those of cs.table in Python: plan.NAME what a sweep's plan has
    set, recipe.NAME of a training, H.largest and H.largest.error of an analysis,
    bound of a certificate.

    \b
    curvescope table runs/sweep
    curvescope table runs/sweep --columns run,plan.lr,test.error,H.largest
    curvescope table runs/sweep --csv results.csv --parquet results.parquet
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope.reports.table import Table as Results
    from curvescope.reports.table import gather

    for option, file, ending in (("--csv", csv, ".csv"), ("--parquet", parquet, ".parquet")):
        if file is not None and file.suffix != ending and str(file) != "-":
            rule = f"must end in {ending}"
            raise CurvescopeError(f"{option} {str(file)!r}", rule)
    found = gather(folder)
    if columns is not None:
        names = [name.strip() for name in columns.split(",") if name.strip()]
        found = Results({name: found[name] for name in names})
    written = [file for file in (csv, parquet) if file is not None and str(file) != "-"]
    for file in written:
        found.save(file)
    if as_json:
        typer.echo(json.dumps([found.row(i) for i in range(len(found))], indent=2))
    elif csv is not None and str(csv) == "-":
        typer.echo(found.csv(), nl=False)
    elif written and not quiet:
        shape = f"{len(found)} rows, {len(found.columns)} columns"
        typer.echo(f"{', '.join(map(str, written))}: {shape}")
    elif not written:
        _show(found, chosen=columns is not None)


def _show(found: Any, *, chosen: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    names = list(found.columns) if chosen else _interesting(found.columns)
    cells = {name: [_text(value) for value in found[name]] for name in names}
    widths = {name: 3 + max(len(name), *map(len, texts), 0) for name, texts in cells.items()}
    while not chosen and len(names) > 2 and sum(widths[name] for name in names) >= console.width:
        names.pop()  # what does not fit is said below
    shown = Table()
    for name in names:
        numbers = all(isinstance(value, int | float | None) for value in found[name])
        shown.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in zip(*(cells[name] for name in names), strict=True):
        shown.add_row(*row)
    console.print(shown, width=sum(widths.values()) + 2)
    if len(names) < len(found.columns):
        left = len(found.columns) - len(names)
        console.print(f"{left} more columns: --columns names some, --csv writes all", markup=False)


def _interesting(columns: dict[str, Sequence[Any]]) -> list[str]:
    """The run, its state, the numbers that most come for, and what differs between runs."""
    wanted = ("run", "state", "test.error", "H.largest", "H.trace", "bound", "agree", "seconds")
    varied = [
        name
        for name, values in columns.items()
        if name.startswith("plan.") and len(set(map(str, values))) > 1
    ]
    return [name for name in [*wanted, *varied] if name in columns]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return short(value) if isinstance(value, float) else str(value)
