"""``curvescope doctor``: a model and its data tried out before anything long is begun."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from curvescope._numbers import short
from curvescope.cli.options import (
    AsJson,
    DataSeed,
    Debug,
    Device,
    Quiet,
    Root,
    Seed,
    check_code,
)
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from curvescope.experiments.doctor import Diagnosis
    from curvescope.experiments.doctor.records import Measured
    from curvescope.problem import Problem


def doctor(
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="The folder of a curvescope train run."),
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
    loss: Annotated[
        str | None,
        typer.Option(metavar="LOSS", help="As for analyze: a name, model, or file.py:Loss."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take so many random training samples.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples at a time; 500, fewer of text."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the diagnosis in this JSON file.")
    ] = None,
    root: Root = None,
    data_seed: DataSeed = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Try a model and its data out: can it be analyzed, and what will that take?

    Looks at loss, determinism, weights and every module, measures products, and
    says what a density, an analysis and a certificate will take on this machine.
    Ends with the command to use, or with the reason why there is none (exit code
    1). Nothing is written without --out.

    \b
    curvescope doctor --model mine.py:build --data mine.py:load
    curvescope doctor --run runs/LeNet5-mnist-6k-seed0 --samples 1000
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    if run is None and (model is None or data is None):
        rule = "needs --run DIR, or --model and --data"
        raise CurvescopeError("doctor", rule, remedy="curvescope doctor --help shows how")
    if run is not None and (model is not None or weights is not None):
        rule = "--run brings its own network"
        raise CurvescopeError("doctor", rule, remedy="give either --run or --model")
    if model is not None:
        check_code("--model", model)

    from curvescope import io
    from curvescope.cli import inputs
    from curvescope.experiments.doctor import doctor as examine
    from curvescope.experiments.load import importable

    with importable(Path.cwd()):
        subject = inputs.subject_of(run, model, weights, data, root=root, seed=data_seed)
        problem, _ = inputs.problems(subject, loss, device, samples, batch_size, seed)
        command = _command(run, model, weights, data, loss, samples, batch_size)
        with Console(stderr=True, quiet=quiet or as_json).status("trying the model out"):
            diagnosis = examine(problem, advice=command)
    if out is not None:
        io.save(out, diagnosis)
    if as_json:
        typer.echo(json.dumps({**io.encode(diagnosis)[0], "ok": diagnosis.ok}, indent=2))
    else:
        show(diagnosis, problem, Console(highlight=False, soft_wrap=True))
    if not diagnosis.ok:
        raise typer.Exit(1)


def _command(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    data: str | None,
    loss: str | None,
    samples: int | None,
    batch_size: int | None,
) -> str:
    """The command that analyzes the same."""
    options: dict[str, Any] = {
        "--run": run, "--model": model, "--weights": weights, "--data": data, "--loss": loss,
        "--samples": samples, "--batch-size": batch_size,
    }  # fmt: skip
    if run is None and model is not None:
        options["--out"] = f"runs/{model.rpartition(':')[2]}"
    words = ["curvescope", "analyze"]
    for option, value in options.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


# Output ----------------------------------------------------------------------------------------


def show(diagnosis: Diagnosis, problem: Problem, console: Console) -> None:
    """Print the diagnosis as tables, and the command, or why there is none, at the end."""
    from curvescope.record.memory import readable

    d = diagnosis
    console.print(
        f"{d.model}: {d.variables:,} of {d.parameters:,} parameters vary, {d.dtype} on {d.device}, "
        f"{d.threads} threads, {readable(d.free)} free",
        markup=False,
    )
    for question in d.questions:
        console.print("[green]ok[/green]  " if question.ok else "[red]no[/red]  ", end="")
        console.print(f"{question.what}: {question.answer}", markup=False)
    for line in _weights(d):
        console.print(f"    {line}", markup=False)
    if d.modules:
        console.print(_modules(d))
    if d.measured is not None:
        console.print(_products(d.measured))
        console.print(_forecasts(d))
    if d.refusal:
        console.print("[red]It cannot be analyzed[/red]: ", end="")
        console.print(d.refusal, markup=False)
    else:
        console.print(d.advice, markup=False)


def _weights(d: Diagnosis) -> list[str]:
    lines = [f"tied: {' = '.join(names)}" for names in d.tied]
    if d.frozen:
        more = f" and {len(d.frozen) - 5} more" if len(d.frozen) > 5 else ""
        lines.append(f"not varied: {', '.join(d.frozen[:5])}{more}")
    if d.attention is not None:
        a = d.attention
        lines.append(f"attention: {a.calls} calls, up to {a.longest} positions, {a.how}")
    return lines


def _modules(d: Diagnosis) -> Table:
    """The modules by kind: those that are treated alike on one line."""
    alike = Counter(
        (m.kind, m.called, m.recorded, m.twice, m.closed_form, m.problem or m.why_not)
        for m in d.modules
    )
    table = Table(title="modules", title_justify="left")
    for column in ("kind", "of them", "on the tape", "second derivative", "closed form", ""):
        table.add_column(column, overflow="fold")
    for (kind, called, recorded, twice, forms, note), count in alike.items():
        table.add_row(
            kind,
            str(count),
            _yes(recorded) if called else "not called",
            _yes(twice) if called else "",
            " and ".join(forms) or "–",
            note,
        )
    return table


def _yes(value: bool) -> str:
    return "yes" if value else "[red]no[/red]"


def _products(m: Measured) -> Table:
    from curvescope.experiments.doctor.records import duration
    from curvescope.record.memory import readable

    title = f"passes and products over {m.samples:,} samples in {m.batches} batches"
    table = Table(title=title, title_justify="left")
    for column in ("", "time", "gradients", "memory", "a block", "its memory"):
        table.add_column(column, justify="left" if not column else "right")
    row = (duration(m.gradient), "1", readable(m.gradient_peak))
    table.add_row("gradient", *row, "", "")
    for p in m.products:
        table.add_row(
            f"{p.matrix}·v, {p.strategy}",
            duration(p.one),
            short(p.one / m.gradient),
            readable(p.peak_one),
            f"{p.columns} in {duration(p.block)}",
            readable(p.peak_block),
        )
    return table


def _forecasts(d: Diagnosis) -> Table:
    from curvescope.experiments.doctor.records import duration
    from curvescope.record.memory import readable

    table = Table(title="what it will take here", title_justify="left")
    for column in ("", "time", "memory", "of which"):
        table.add_column(column, overflow="fold")
    for each in d.forecasts:
        if each.seconds is None or each.bytes is None:
            table.add_row(each.what, "–", "–", each.because)
            continue
        parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in each.steps)
        table.add_row(each.what, duration(each.seconds), readable(each.bytes), parts)
    return table
