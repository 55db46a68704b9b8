"""What a piece of work will take, said before it starts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from curvescope.experiments.doctor.records import Forecast
    from curvescope.problem import Problem


def tell(forecast: Forecast, problem: Problem, *, stop: bool, as_json: bool) -> None:
    """Print an estimate: to standard error before the work, to standard output in its place.

    Args:
        forecast: The estimate.
        problem: What is worked on.
        stop: Whether the command ends with it (``--dry-run``).
        as_json: Whether it is printed as JSON.
    """
    from curvescope.experiments.doctor.records import duration
    from curvescope.record.memory import free, readable

    left = free(problem.device)
    if stop and as_json:
        typer.echo(json.dumps({**asdict(forecast), "free": left}, indent=2))
        return
    console = Console(stderr=not stop, highlight=False, soft_wrap=True)
    steps = ", ".join(f"{name} {duration(seconds)}" for name, seconds in forecast.steps)
    console.print(str(forecast), markup=False)
    if steps:
        console.print(f"  {steps}", markup=False)
    if forecast.bytes is not None and forecast.bytes > left:
        console.print(
            f"[yellow]That is more than the {readable(left)} that are free[/yellow]: take fewer "
            "samples, or a smaller --batch-size where there is one."
        )
