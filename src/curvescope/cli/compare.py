"""``curvescope compare``: sharpness against generalization for several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from curvescope._checks import one_of
from curvescope.cli.interrupts import stoppable
from curvescope.cli.options import AsJson, DataSeed, Debug, Device, Quiet, Root, Seed, check_folder
from curvescope.cli.progress import Display
from curvescope.errors import CurvescopeError


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of curvescope train or analyze."),
    ],
    against: Annotated[
        str,
        typer.Option(metavar="WHAT", help="test error, test loss, error gap or loss gap."),
    ] = "test error",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write table (.md, .csv) and picture (.svg, .png)."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Curvature on so many random training samples."),
    ] = None,
    root: Root = None,
    data_seed: DataSeed = None,
    seed: Seed = 0,
    device: Device = "auto",
    again: Annotated[
        bool, typer.Option("--again", help="Measure trainings anew and replace whatever is there.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare runs: is the sharper or the flatter one better?

    Prints a table and one sentence. What an analysis has measured is used; a
    training without one is measured, and the numbers are kept in its folder.
    Runs must be of one network.

    \b
    curvescope compare runs/wd0 runs/wd1e-4 runs/wd5e-4
    curvescope compare runs/* --against "loss gap" --out comparison
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    if len(runs) < 2:
        raise CurvescopeError("compare", "needs at least two runs", given=len(runs))

    from curvescope.cli import comparison
    from curvescope.cli.inputs import choose_device
    from curvescope.experiments.measured import Measuring, measured_run
    from curvescope.flatness.comparison import GENERALIZATION

    one_of("compare", "against", against, tuple(GENERALIZATION))
    if out is not None:
        check_folder("--out", out)
    home = str(choose_device(device))
    measuring = Measuring(samples=samples, seed=seed)
    advice = "what was measured is kept in the folders of the runs: the same command goes on"
    with stoppable(advice):
        with Display(quiet=quiet or as_json) as display:
            measured = [
                measured_run(
                    folder,
                    measuring,
                    root=root,
                    data_seed=data_seed,
                    device=home,
                    again=again,
                    tell=display.stage,
                )
                for folder in runs
            ]
        columns = comparison.columns_of(measured)
        compared = comparison.compared_columns(columns)
        verdicts = [compared.verdict(against, mode=mode) for mode in dict.fromkeys(compared.modes)]
        written = (
            []
            if out is None
            else comparison.write(out, columns, compared, verdicts, against, again=again)
        )
    if as_json:
        summary = comparison.summary(columns, compared, verdicts, written)
        typer.echo(json.dumps(summary, indent=2))
    else:
        cells = comparison.cells_of(columns, compared)
        console = Console(highlight=False, soft_wrap=True)
        comparison.show(measured, compared, cells, verdicts, console)
        for path in written:
            typer.echo(str(path))
