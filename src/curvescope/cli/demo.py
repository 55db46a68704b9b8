"""``curvescope demo``: two networks trained and analysed, a third certified, and one report."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from curvescope.cli.progress import Display, stoppable
from curvescope.experiments.checks import Number
from curvescope.experiments.demo import Demonstration, demonstrate
from curvescope.experiments.store import RunDirectory
from curvescope.reports.demonstration import write_demonstration


def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Train, analyse and certify small networks on an embedded part of MNIST.

    It takes two minutes or so and ends with the name of a report. Ctrl-C
    stops it, and the same command goes on from there.

    \b
    curvescope demo
    curvescope demo --seed 1 --out runs/demo-1 --open
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    advice = f"what is finished lies in {out}: the same command goes on from there"
    with stoppable(advice), Display(quiet=quiet or as_json) as display:
        result = demonstrate(
            out, seed=seed, tell=display.stage, show=display.move, progress=display.step
        )
        display.stage("report")
        report = write_demonstration(result)
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
    table = Table()
    table.add_column("")
    columns = [_numbers(run) for run in result.runs]
    for run in result.runs:
        table.add_column(str(run.config["model"]["name"]), justify="right")
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    console.print(table)
    console.print("H: Hessian of the training loss, G: its Gauss-Newton part, E = H − G")
    bound, level = result.certificate.bound, result.certificate.confidence.level
    console.print(
        f"certificate: a stochastic network for two classes errs on at most {bound:.1%} of new "
        f"digits (confidence {level:g})"
    )
    checks = [check for run in result.runs for _, check in run.checks()]
    for check in checks:
        if not check.passed:
            console.print(f"[red]disagree:[/red] {check.statement}")
    agreeing = sum(check.passed for check in checks)
    console.print(f"self-checks: {agreeing} of {len(checks)} agree")
    console.print(f"open the report: {report}", markup=False)


def _numbers(run: RunDirectory) -> dict[str, str]:
    overview = run.record("overview")["values"]
    spectra = {name: run.record(f"spectrum-{name}")["values"] for name in ("H", "G", "E")}
    rows = {
        "parameters": f"{overview['parameters']:,}",
        "test error": f"{overview['fits']['test']['error']:.1%}",
    }
    for name, values in spectra.items():
        rows[f"largest eigenvalue of {name}"] = f"{max(values['outliers']):.4g}"
    for name, values in spectra.items():
        rows[f"trace of {name}"] = str(Number(**values["trace"]))
    return rows


def _summary(result: Demonstration, report: Path) -> dict[str, Any]:
    return {
        "folder": str(result.path),
        "report": str(report),
        "consistent": result.consistent,
        "networks": {
            str(run.config["model"]["name"]): {
                "folder": str(run.path),
                "parameters": run.record("overview")["values"]["parameters"],
                "fits": run.record("overview")["values"]["fits"],
                "spectra": {
                    name: run.record(f"spectrum-{name}")["values"] for name in ("H", "G", "E")
                },
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
