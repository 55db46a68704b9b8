"""``curvescope analyse``: a run's curvature, or that of one's own model, into a directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from curvescope._checks import CurvescopeError
from curvescope.cli.progress import Display, stoppable
from curvescope.experiments import load, trained
from curvescope.experiments.analyse import analyse as measure
from curvescope.experiments.checks import Number
from curvescope.experiments.stages.context import Settings, derived
from curvescope.experiments.store import RunDirectory
from curvescope.problem import Problem
from curvescope.reports.page import write_report


@dataclass(frozen=True)
class _Subject:
    """What is to be analysed."""

    model: nn.Module
    data: load.Splits
    loss: str
    name: str | None = None


def analyse(
    run: Annotated[
        Path | None, typer.Option("--run", help="The folder of a curvescope train run.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="pkg.module:build or file.py:build, called without arguments; LeNet5, …"),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="The model's weights, a .safetensors file.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="pkg.module:load, file.py:load, arrays.npz, mnist, mnist-6k, …"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the results go; DIR/analysis for --run DIR.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="cross_entropy, binary_logistic or mse.")] = None,
    layers: Annotated[str | None, typer.Option(help="The layers to look into: fc1,fc2.")] = None,
    classes: Annotated[
        bool, typer.Option("--classes/--no-classes", help="Whether to look into the classes.")
    ] = True,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Take so many random training samples.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Samples at a time; the numbers do not depend on it.")
    ] = 500,
    steps: Annotated[int, typer.Option(min=4, help="Lanczos steps of each density.")] = 100,
    probes: Annotated[int, typer.Option(min=4, help="Random vectors of each density.")] = 8,
    root: Annotated[Path | None, typer.Option(help="The folder with the data files.")] = None,
    data_seed: Annotated[
        int | None, typer.Option(help="The seed of random labels or sub-samples, as in training.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Whether to draw PDF and SVG figures.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Measure a network's curvature: spectra, layers, classes, and an HTML report.

    Results are kept stage by stage: ctrl-C loses little, and the same command goes on.

    \b
    curvescope analyse --run runs/LeNet5-mnist-6k-seed0
    curvescope analyse --model net.py:build --weights net.safetensors \\
        --data mnist --out runs/net
    curvescope analyse --model my.pkg:build --data my.pkg:load --out runs/mine
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    if run is None and (model is None or data is None):
        msg = "analyse: needs --run DIR, or --model and --data; curvescope analyse --help shows how"
        raise CurvescopeError(msg)
    place = _place(run, out)
    with load.importable(Path.cwd()):
        subject = _subject(run, model, weights, data, loss, root=root, seed=data_seed)
        train, test = _problems(subject, device, samples, batch_size, seed)
        names = {"data": subject.data.name}
        if subject.name:
            names["model"] = subject.name
        advice = f"what is finished lies in {place}: the same command goes on from there"
        with stoppable(advice), Display(quiet=quiet or as_json) as display:
            result = measure(
                train,
                place,
                seed=seed,
                test=test,
                layers=None if layers is None else _listed(layers),
                classes=classes,
                settings=Settings(steps=steps, probes=probes),
                names=names,
                tell=display.stage,
                progress=display.step,
            )
            display.stage("report")
            report = write_report(place, figures=None if figures else False)
    if as_json:
        typer.echo(json.dumps(_finite(_summary(result, report)), indent=2, allow_nan=False))
    else:
        show(result, report, Console(highlight=False, soft_wrap=True))
    if not all(check.passed for _, check in result.checks()):
        raise typer.Exit(1)


# What to analyse ------------------------------------------------------------------------


def _place(run: Path | None, out: Path | None) -> Path:
    if out is not None:
        return out
    if run is None:
        msg = "analyse: --out must name a folder for the results; only --run has one of its own"
        raise CurvescopeError(msg)
    return run / "analysis"


def _subject(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    data: str | None,
    loss: str | None,
    *,
    root: Path | None,
    seed: int | None,
) -> _Subject:
    """The model with its weights and data, from a run or from what the user names."""
    if run is not None:
        if model is not None or weights is not None:
            msg = "analyse: --run brings its own network; give either --run or --model"
            raise CurvescopeError(msg)
        config = trained.run_config(run)
        splits = (
            trained.load_run_data(run, root=root, seed=seed)
            if data is None
            else load.load_data(data, root=root, seed=seed)
        )
        return _Subject(trained.load_run(run), splits, loss or config["recipe"]["loss"])
    assert model is not None, "checked before"
    assert data is not None, "checked before"
    splits = load.load_data(data, root=root, seed=seed)
    network = load.load_model(model, splits.train)
    if weights is not None:
        load.read_weights(weights, network)
    elif ":" not in model:
        msg = f"analyse: --model {model!r} needs --weights; only code can return a trained model"
        raise CurvescopeError(msg)
    return _Subject(network, splits, loss or "cross_entropy", model)


def _problems(
    subject: _Subject, device: str, samples: int | None, batch_size: int, seed: int
) -> tuple[Problem, Problem | None]:
    home = load.choose_device(device)
    model = subject.model.to(home).eval()
    train, test = subject.data.train, subject.data.test
    if samples is not None:
        generator = torch.Generator().manual_seed(derived(seed, "samples"))
        train = load.choose_samples(train, samples, generator)

    def problem(data: Any) -> Problem:
        in_memory = isinstance(getattr(data, "tensors", data), tuple)
        return Problem(model, data, subject.loss, batch_size=batch_size if in_memory else None)

    return problem(train), None if test is None else problem(test)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


# What is shown --------------------------------------------------------------------------


def show(run: RunDirectory, report: Path, console: Console) -> None:
    """Print the measures of sharpness, the self-checks that fail, and where the report lies."""
    overview = run.stage("overview").values
    model, data = run.config["model"]["name"], run.config["data"]["name"]
    console.print(f"{model} ({overview['parameters']:,} parameters) on {data}", markup=False)
    for split, fit in overview["fits"].items():
        error = "" if fit["error"] is None else f"  error {fit['error']:.2%}"
        console.print(f"  {split:<5}  {fit['samples']:,} samples  loss {fit['loss']:.4g}{error}")
    console.print(_table(run))
    checks = run.checks()
    failed = [check for _, check in checks if not check.passed]
    for check in failed:
        console.print(f"[red]disagree:[/red] {check.statement}")
    console.print(f"self-checks: {len(checks) - len(failed)} of {len(checks)} agree")
    console.print(f"report: {report}", markup=False)


def _table(run: RunDirectory) -> Table:
    spectra = [run.stage(name).values for name in run.stages if name.startswith("spectrum-")]
    table = Table()
    table.add_column("")
    for values in spectra:
        table.add_column(values["matrix"], justify="right")
    table.add_row("largest eigenvalue", *(f"{max(v['outliers']):.5g}" for v in spectra))
    table.add_row("trace", *(str(Number(**v["trace"])) for v in spectra))
    table.add_row("Frobenius norm", *(str(Number(**v["frobenius"])) for v in spectra))
    table.add_row("products", *(f"{v['products']:,}" for v in spectra))
    return table


def _summary(run: RunDirectory, report: Path) -> dict[str, Any]:
    return {
        "folder": str(run.path),
        "report": str(report),
        "config": run.config,
        "stages": {name: run.stage(name).values for name in run.stages},
        "seconds": {name: run.stage(name).seconds for name in run.stages},
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
