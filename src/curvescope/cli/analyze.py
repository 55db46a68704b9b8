"""``curvescope analyze``: the curvature of a run's network or of the user's model."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from curvescope._numbers import short
from curvescope.cli.interrupts import stoppable
from curvescope.cli.options import (
    AsJson,
    DataSeed,
    Debug,
    Device,
    DryRun,
    Quiet,
    Root,
    Seed,
    check_code,
)
from curvescope.cli.progress import Display
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from curvescope.experiments.stages.plan import Extra
    from curvescope.experiments.store import RunDirectory


def analyze(
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="The folder of a curvescope train run."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="EPOCH", help="Of --run: initial, final or an epoch that it kept."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="pkg.module:build or file.py:build; LeNet5, …"),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights, .safetensors.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="pkg.module:load, file.py:load, x.npz, mnist, …"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For the results; DIR/analysis for --run DIR."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="LOSS",
            help="cross_entropy, binary_logistic, mse, huber, model, or file.py:Loss.",
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="LIST", help="The layers to look into: fc1,fc2.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="K|CODE",
            help="Classes of text: the K most frequent labels, or by file.py:NAME.",
        ),
    ] = None,
    no_classes: Annotated[
        bool, typer.Option("--no-classes", help="Do not look into the classes.")
    ] = False,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            help="A stage of yours, file.py:NAME; any number.",
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take so many random training samples.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples at a time; 500, fewer of text."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=4, metavar="N", help="Lanczos steps of each density.")
    ] = 100,
    probes: Annotated[
        int, typer.Option(min=4, metavar="N", help="Random vectors of each density.")
    ] = 8,
    sharing: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Positions in Kronecker factors: expand, reduce.",
        ),
    ] = "expand",
    root: Root = None,
    data_seed: DataSeed = None,
    seed: Seed = 0,
    device: Device = "auto",
    figures: Annotated[
        bool,
        typer.Option(
            "--figures/--no-figures",
            show_default=False,
            help="Whether to draw PDF and SVG figures.",
        ),
    ] = True,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a network's curvature: spectra, layers, classes, and an HTML report.

    Results are kept stage by stage: ctrl-C loses little, and the same command
    goes on. The code of --model is called without arguments; that of --data too,
    or with split="train" and split="test" if it has a parameter split.

    \b
    curvescope analyze --run runs/LeNet5-mnist-6k-seed0 --samples 1000
    curvescope analyze --model net.py:build --weights net.safetensors \\
        --data mnist --out runs/net
    curvescope analyze --model my.pkg:build --data my.pkg:load --out runs/mine
    curvescope analyze --run runs/gpt --samples 64 --classes 10 --sharing reduce
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    place = check_inputs(run, model, weights, data, out, checkpoint)

    from curvescope.cli import inputs, ranks
    from curvescope.cli.estimates import tell
    from curvescope.cli.pages import report_of
    from curvescope.experiments import analyze as recipe
    from curvescope.experiments.configuration import Settings
    from curvescope.experiments.doctor.examination import estimate_analysis
    from curvescope.experiments.load import importable, load_extra

    if dry_run:
        ranks.refuse("analyze --dry-run")
    with importable(Path.cwd()), ranks.joined(device) as (group, here):
        quiet = quiet or group.rank > 0
        subject = inputs.subject_of(
            run, model, weights, data, root=root, seed=data_seed, checkpoint=checkpoint or "final"
        )
        train, test = inputs.problems(subject, loss, here, samples, batch_size, seed, group)
        stages = [load_extra(text) for text in extra or ()]
        settings = Settings(steps=steps, probes=probes, sharing=sharing)
        chosen, grouping = _listed(layers), _grouping(classes, leave_out=no_classes)
        told = quiet or as_json or (place / "config.json").exists() or not group.alone
        if dry_run or not told:
            forecast = estimate_analysis(
                train, settings=settings, layers=chosen, classes=grouping, test=test
            )
            tell(forecast, train, stop=dry_run, as_json=as_json)
        if dry_run:
            return
        names = {"data": subject.data.name}
        if subject.name:
            names["model"] = subject.name
        advice = f"what is finished lies in {place}: the same command goes on from there"
        with (
            stoppable(advice, place / "config.json"),
            Display(quiet=quiet or as_json) as display,
        ):
            result = recipe.analyze(
                train,
                place,
                seed=seed,
                test=test,
                layers=chosen,
                classes=grouping,
                extra=stages,
                settings=settings,
                names=names,
                tell=display.stage,
                progress=display.step,
            )
            if group.rank > 0:
                return
            display.stage("report")
            report = report_of(result, figures=figures, extra=stages)
        if as_json:
            summary = _finite(_summary(result, report, stages))
            typer.echo(json.dumps(summary, indent=2, allow_nan=False))
        else:
            show(result, report, Console(highlight=False, soft_wrap=True))
    if not all(check.passed for _, check in result.checks()):
        raise typer.Exit(1)


# Input ----------------------------------------------------------------------------------


def check_inputs(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    data: str | None,
    out: Path | None,
    checkpoint: str | None = None,
) -> Path:
    """Check that the options fit together; return the folder for the results."""
    if run is None and (model is None or data is None):
        rule = "needs --run DIR, or --model and --data"
        raise CurvescopeError("analyze", rule, remedy="curvescope analyze --help shows how")
    if run is not None and (model is not None or weights is not None):
        rule = "--run brings its own network"
        raise CurvescopeError("analyze", rule, remedy="give either --run or --model")
    if checkpoint is not None and run is None:
        rule = "--checkpoint is one of a run"
        raise CurvescopeError("analyze", rule, remedy="name it with --run")
    if model is not None:
        check_code("--model", model)
    if model is not None and weights is None and ":" not in model:
        rule = f"--model {model!r} needs --weights"
        raise CurvescopeError("analyze", rule, remedy="only code can return a trained model")
    if out is not None:
        return out
    if run is None:
        rule = "--out must name a folder for the results"
        raise CurvescopeError("analyze", rule, remedy="only --run has a folder already")
    return run / (f"analysis-{checkpoint}" if checkpoint else "analysis")


def _listed(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def _grouping(text: str | None, *, leave_out: bool) -> Any:
    """What ``classes`` of the recipe is for the two options."""
    from curvescope.experiments.load import load_grouping

    if leave_out and text is not None:
        rule = "--no-classes leaves out what --classes asks for"
        raise CurvescopeError("analyze", rule, remedy="give one of the two")
    if text is None:
        return not leave_out
    return int(text) if text.isdecimal() else load_grouping(text)


# Output --------------------------------------------------------------------------------


def show(run: RunDirectory, report: Path, console: Console) -> None:
    """Print the measures of sharpness, the self-checks that fail, and where the report lies."""
    from curvescope.experiments.stages.overview import Overview

    overview = run.result("overview", Overview)
    model, data = run.config.model.name, run.config.data.name
    console.print(f"{model} ({overview.parameters:,} parameters) on {data}", markup=False)
    for split, fit in overview.fits.items():
        error = "" if fit.error is None else f"  error {fit.error:.2%}"
        console.print(f"  {split:<5}  {fit.samples:,} samples  loss {short(fit.loss)}{error}")
    console.print(_table(run))
    checks = run.checks()
    failed = [check for _, check in checks if not check.passed]
    for check in failed:
        console.print(f"[red]disagree:[/red] {check.statement}")
    console.print(f"self-checks: {len(checks) - len(failed)} of {len(checks)} agree")
    console.print(f"report: {report}", markup=False)


def _table(run: RunDirectory) -> Table:
    from curvescope.experiments.best_values import best_values
    from curvescope.experiments.quantities import FROBENIUS, LARGEST, SMALLEST, TRACE
    from curvescope.experiments.stages.spectra import spectra_of

    best, spectra = best_values(run), spectra_of(run)
    table = Table()
    table.add_column("")
    for name in spectra:
        table.add_column(name, justify="right")
    for quantity in (LARGEST, SMALLEST, TRACE, FROBENIUS):
        table.add_row(quantity, *(str(best[name].get(quantity, "–")) for name in spectra))
    table.add_row("products", *(f"{spectrum.products:,}" for spectrum in spectra.values()))
    return table


def result_of(run: RunDirectory, stage: str, extra: Sequence[Extra] = ()) -> Any:
    """The result of a stage as plain JSON, large matrices by their shape."""
    from curvescope import io
    from curvescope.experiments.stages.plan import kinds_of

    kind = kinds_of(run.config, extra)[stage]
    return io.readable(run.result(stage, kind), kind)


def _summary(run: RunDirectory, report: Path, extra: Sequence[Extra]) -> dict[str, Any]:
    from curvescope import io

    return {
        "folder": str(run.path),
        "report": str(report),
        "config": io.encode(run.config)[0],
        "stages": {name: result_of(run, name, extra) for name in run.stages},
        "seconds": {name: run.stage(name, Any).seconds for name in run.stages},
        "checks": [
            {"stage": stage, "statement": check.statement, "passed": check.passed}
            for stage, check in run.checks()
        ],
    }


def _finite(value: Any) -> Any:
    """Numbers that JSON does not have, such as the error of a single probe, become null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value
