"""``curvescope demo``: two networks trained and analyzed, a third certified, and one report."""

from __future__ import annotations

import json
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from curvescope.cli.interrupts import stoppable
from curvescope.cli.options import AsJson, Debug, Quiet, Seed
from curvescope.cli.progress import Display

if TYPE_CHECKING:
    from curvescope.experiments.demo import Demonstration


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where everything goes.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train, analyze and certify small networks on an embedded part of MNIST.

    It takes two minutes or so and ends with the name of a report. Ctrl-C
    stops it, and the same command goes on from there.

    \b
    curvescope demo
    curvescope demo --seed 1 --out runs/demo-1 --open
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope.cli.pages import report_of_demonstration
    from curvescope.experiments import demo as recipe

    advice = f"what is finished lies in {out}: the same command goes on from there"
    with stoppable(advice, out / "config.json"), Display(quiet=quiet or as_json) as display:
        result = recipe.demonstrate(
            out, seed=seed, tell=display.stage, show=display.move, progress=display.step
        )
        display.stage("report")
        report = report_of_demonstration(result)
    if as_json:
        typer.echo(json.dumps(_summary(result, report), indent=2))
    else:
        show(result, report, Console(highlight=False, soft_wrap=True))
    if browser:
        webbrowser.open(report.resolve().as_uri())
    if not result.consistent:
        raise typer.Exit(1)


def show(result: Demonstration, report: Path, console: Console) -> None:
    """Print one column for each network, the certificate, the self-checks and the report."""
    from curvescope.certificates.divergence import percent_upwards
    from curvescope.experiments.demo import column

    table = Table()
    table.add_column("")
    columns = [column(run) for run in result.runs]
    for run in result.runs:
        table.add_column(run.config.model.name, justify="right")
    for row in columns[0]:
        table.add_row(row, *(numbers[row] for numbers in columns))
    console.print(table)
    console.print("H: Hessian of the training loss, G: its Gauss-Newton part, E = H − G")
    bound, level = result.certificate.bound, result.certificate.confidence.level
    console.print(
        f"certificate: a stochastic network for two classes errs on at most "
        f"{percent_upwards(bound)} of new digits (confidence {level})"
    )
    checks = [check for run in result.runs for _, check in run.checks()]
    for check in checks:
        if not check.passed:
            console.print(f"[red]disagree:[/red] {check.statement}")
    agreeing = sum(check.passed for check in checks)
    console.print(f"self-checks: {agreeing} of {len(checks)} agree")
    console.print(f"open the report: {report}", markup=False)


def _summary(result: Demonstration, report: Path) -> dict[str, Any]:
    from curvescope.cli.analyze import result_of
    from curvescope.experiments.stages.overview import Overview

    return {
        "folder": str(result.path),
        "report": str(report),
        "consistent": result.consistent,
        "networks": {
            run.config.model.name: {
                "folder": str(run.path),
                "parameters": run.result("overview", Overview).parameters,
                "fits": {
                    k: asdict(fit) for k, fit in run.result("overview", Overview).fits.items()
                },
                "values": result_of(run, "summary")["values"],
                "spectra": {name: result_of(run, f"spectrum-{name}") for name in ("H", "G", "E")},
                "checks": [
                    {"statement": check.statement, "passed": check.passed}
                    for _, check in run.checks()
                ],
            }
            for run in result.runs
        },
        "certificate": {
            "bound": result.certificate.bound,
            "confidence": result.certificate.confidence.level,
            "empirical_error": result.certificate.empirical_error,
        },
    }
