"""``curvescope data``: list, verify and fetch data sets.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from curvescope.cli.interrupts import stoppable
from curvescope.cli.options import AsJson, Debug, Root
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from curvescope.data.inventory import Entry

HELP = """List, verify and fetch data sets. Files are looked for below --root,
then below $CURVESCOPE_DATA, then in the user's cache.

\b
curvescope data list
curvescope data fetch mnist cifar-10 --root data
curvescope data verify mnist --root data
"""

data = typer.Typer(
    name="data",
    help=HELP,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@data.callback(invoke_without_command=True)
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data.command("list", short_help="Show every data set and where it is.")
def list_sets(
    root: Root = None,
    as_json: AsJson = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the names of the sets that are here.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show every data set, its size, and where it was found.

    \b
    curvescope data list
    curvescope data list --root data --json
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope.data.inventory import inventory
    from curvescope.data.mixture import FORM

    entries = inventory(root)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
    elif quiet:
        for entry in entries:
            if entry.location is not None:
                typer.echo(entry.name)
    else:
        console = Console(highlight=False, markup=False)
        console.print(_table(entries))
        if any(entry.location is None and entry.megabytes is not None for entry in entries):
            console.print("What is missing is downloaded by: curvescope data fetch NAME")
        console.print(f"Gaussian mixtures have names like {FORM}.")
        console.print("python-topics-T64 has 64 characters in a sample instead of 128.")
        console.print("After a name: -2 for 0–4 against 5–9, -R for random labels (mnist-2-R).")


def _table(entries: list[Entry]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for heading in ("classes", "train", "test", "sample"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for entry in entries:
        inside = {"package": "in the package", "Python": "in Python"}
        where = inside.get(entry.location or "", entry.location)
        if where is None and entry.megabytes is not None:
            where = f"missing ({entry.megabytes:.0f} MB)"
        table.add_row(
            entry.name,
            str(entry.classes),
            f"{entry.train:,}",
            f"{entry.test:,}",
            "×".join(map(str, entry.shape)),
            where or "missing",
        )
    return table


@data.command("verify", short_help="Compare the checksums of files.")
def verify_sets(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="The sets; by default all that are here."),
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what is wrong.")] = False,
    debug: Debug = False,
) -> None:
    """Read the files and compare their checksums; exit with 1 if one is wrong.

    \b
    curvescope data verify
    curvescope data verify mnist cifar-10 --root data
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope.data.inventory import inventory
    from curvescope.data.names import parse

    here = [entry.name for entry in inventory(root) if entry.location is not None]
    for name in names or []:
        parse("data verify", name)
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=as_json)
    checks = []
    for name in names or here:
        checks.append(_check(name, root))
        if checks[-1].error is not None:
            console.print(f"{name}: WRONG, {checks[-1].error}")
        elif not quiet:
            console.print(f"{name}: right ({_counted(len(checks[-1].files))})")
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    if any(check.error is not None for check in checks):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Check:
    """The files of a set that are right, or the sentence about the one that is not."""

    name: str
    files: list[str]
    error: str | None


def _check(name: str, root: Path | None) -> Check:
    """Verify a set. A wrong file is a result; a set that is not here is an error."""
    from curvescope.data.inventory import verify
    from curvescope.data.places import MissingFiles

    try:
        return Check(name, verify(name, root), None)
    except MissingFiles:
        raise
    except CurvescopeError as error:
        return Check(name, [], error.after_where())


def _counted(files: int) -> str:
    return f"{files} file{'s' * (files != 1)}"


@data.command("fetch", short_help="Download data sets.")
def fetch_sets(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="The sets to download.")],
    root: Annotated[
        Path | None,
        typer.Option(
            "--root",
            help="The folder to put them below, instead of $CURVESCOPE_DATA or the cache.",
            metavar="DIR",
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Debug = False,
) -> None:
    """Download data sets, compare their checksums, and print where they are.

    \b
    curvescope data fetch mnist
    curvescope data fetch mnist cifar-10 --root data
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope.data import download
    from curvescope.data.names import parse

    for name in names:
        parse("data fetch", name)
    folders = {}
    with stoppable("complete files are kept: the same command fetches the others"):
        for name in names:
            folders[name] = str(download.fetch(name, root, progress=not (quiet or as_json)))
    if as_json:
        typer.echo(json.dumps(folders, indent=2))
    else:
        for folder in folders.values():
            typer.echo(folder)
