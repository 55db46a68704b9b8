"""``curvescope view``: a local page that lists, shows and compares runs."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from curvescope.cli.interrupts import Stopped, stoppable
from curvescope.cli.options import Debug


def view(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the runs.")] = Path(
        "runs"
    ),
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="0 takes a free one.")
    ] = 0,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Others can reach it unless it is loopback.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the address alone.")] = False,
    debug: Debug = False,
) -> None:
    """Show the runs of a folder in a browser: list, filter, reports, comparison.

    The page is for this machine alone; its address holds a secret that is
    new each time. Stop it with ctrl-C.

    \b
    curvescope view runs
    curvescope view runs --port 8000 --open
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope.reports.server import Viewer

    with Viewer(folder, port=port, host=host) as viewer:
        try:
            with stoppable("the page is gone"):
                _announce(folder, viewer.address, as_json=as_json, quiet=quiet)
                if browser:
                    webbrowser.open(viewer.address)
                viewer.serve_forever(poll_interval=0.2)
        except Stopped:  # as it was told to
            return


def _announce(folder: Path, address: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"address": address}))
    elif quiet:
        typer.echo(address)
    else:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"runs in {folder}: {address}", markup=False)
        console.print("stop with ctrl-C")
