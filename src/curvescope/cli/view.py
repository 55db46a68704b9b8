"""``curvescope view``: a local page that lists, shows and compares runs."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from curvescope.reports.server import Viewer


def view(
    folder: Annotated[Path, typer.Argument(help="The folder with the runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="An address of this machine; others can reach it unless loopback.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the address alone.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Show the runs of a folder in a browser: list, filter, reports, comparison.

    The page is for this machine alone; its address holds a secret that is
    new each time. Stop it with ctrl-C.

    \b
    curvescope view runs
    curvescope view runs --port 8000 --open
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    with Viewer(folder, port=port, host=host) as viewer:
        if as_json:
            typer.echo(json.dumps({"address": viewer.address}))
        elif quiet:
            typer.echo(viewer.address)
        else:
            console = Console(highlight=False, soft_wrap=True)
            console.print(f"runs in {folder}: {viewer.address}", markup=False)
            console.print("stop with ctrl-C")
        if browser:
            webbrowser.open(viewer.address)
        try:
            viewer.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return
