"""``curvescope demo``: the demonstration as a table or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import floor, log10
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from curvescope.cli.progress import Display
from curvescope.experiments.demo import Demonstration, Number, demonstrate


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Train a small network on an embedded part of MNIST and show its curvature."""
    with Display(quiet=quiet or as_json) as display:
        result = demonstrate(seed=seed, tell=display.stage, progress=display.step)
    if as_json:
        typer.echo(json.dumps({**asdict(result), "consistent": result.consistent}, indent=2))
    else:
        show(result, Console(highlight=False, soft_wrap=True))
    if not result.consistent:
        raise typer.Exit(1)


def show(result: Demonstration, console: Console) -> None:
    """Print the fit, one column for each matrix, and the self-check."""
    console.print(
        f"{result.network} ({result.parameters:,} parameters) on {result.data}, seed {result.seed}"
    )
    for split, fit in (("train", result.train), ("test", result.test)):
        console.print(f"  {split:<5}  loss {fit.loss:.4f}  accuracy {fit.accuracy:.1%}")
    console.print()
    console.print(_table(result))
    console.print("H: Hessian of the training loss, G: its Gauss-Newton part, E = H − G;")
    console.print("eigenvalues by magnitude ± residual norm, estimates ± standard error.")
    console.print()
    verdict = "[green]consistent[/green]" if result.consistent else "[red]inconsistent[/red]"
    gap = _plus_minus(result.discrepancy)
    console.print(f"Self-check: Tr H less n · mean of H's spectrum = {gap}: {verdict}")


def _table(result: Demonstration) -> Table:
    table = Table()
    table.add_column("")
    for matrix in result.curvature:
        table.add_column(matrix.name, justify="right")
    for i in range(len(result.curvature[0].eigenvalues)):
        cells = (
            f"{matrix.eigenvalues[i]:.4f} ± {matrix.residuals[i]:.0e}"
            for matrix in result.curvature
        )
        table.add_row(f"eigenvalue {i + 1}", *cells)
    table.add_section()
    table.add_row("trace", *(_plus_minus(matrix.trace) for matrix in result.curvature))
    table.add_row("Frobenius norm", *(_plus_minus(matrix.frobenius) for matrix in result.curvature))
    table.add_row("products", *(f"{matrix.products:,}" for matrix in result.curvature))
    return table


def _plus_minus(number: Number) -> str:
    """Value and error to the same decimal, that of the error's second significant digit."""
    if not 0 < number.stderr < float("inf"):
        return f"{number.value:.6g} ± {number.stderr:g}"
    decimals = max(1 - floor(log10(number.stderr)), 0)
    return f"{number.value:.{decimals}f} ± {number.stderr:.{decimals}f}"
