"""``curvescope certify``: a bound on the error of new examples, and the check of such a bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from curvescope.cli.interrupts import check, stoppable
from curvescope.cli.options import (
    AsJson,
    DataSeed,
    Debug,
    Device,
    DryRun,
    Quiet,
    Root,
    Seed,
    check_apart,
    check_code,
    writable,
)
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from curvescope import certificates
    from curvescope.certificates import Certificate
    from curvescope.cli.inputs import Subject


def certify(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The folder of a finished curvescope train run."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="pkg.module:build or file.py:build; T-600, LeNet5, …"),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The trained weights, .safetensors.")
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The weights before training.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="pkg.module:load, file.py:load, arrays.npz, mnist-2, …"),
    ] = None,
    root: Root = None,
    data_seed: DataSeed = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="local, or base, appr, iter, 'iter(d)' or iter.m of the paper Dissecting Hessian.",
        ),
    ] = "local",
    epochs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Passes over the data; the method's own if none."),
    ] = None,
    delta: Annotated[float, typer.Option(metavar="RISK", help="That the sample misleads.")] = 0.025,
    draw_delta: Annotated[
        float, typer.Option(metavar="RISK", help="That the draws mislead.")
    ] = 0.01,
    slack: Annotated[
        float | None,
        typer.Option(metavar="S", help="What the draws may add to the error; decides how many."),
    ] = None,
    prior_split: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Train the prior mean on this share of the data."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The certificate; RUN/certificate.json if none."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Compute it anew, whatever is there.")
    ] = False,
    verify: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check this certificate instead.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Certify a trained network's error on new examples (PAC-Bayes).

    The bound holds for weights drawn from a Gaussian around the trained ones. A
    finished certificate is shown, one of other settings is replaced by --again
    alone. --verify FILE checks one: alone whether its numbers are consistent;
    with the run, or --model, --weights, --initial and --data, everything else.

    \b
    curvescope train T-100 --data mnist-6k-2 --loss binary_logistic \\
        --out runs/binary
    curvescope certify runs/binary
    curvescope certify --verify runs/binary/certificate.json runs/binary
    curvescope certify --model net.py:build --weights w.safetensors \\
        --initial w0.safetensors --data net.py:load --out certificate.json
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    from curvescope.certificates import Certificate
    from curvescope.certificates.certificate import posterior_file
    from curvescope.cli import verification
    from curvescope.cli.estimates import tell as tell_estimate
    from curvescope.cli.inputs import choose_device
    from curvescope.experiments.certified import certified, parts_folder
    from curvescope.experiments.doctor.certificate import examples
    from curvescope.experiments.doctor.examination import estimate_certificate
    from curvescope.experiments.load import importable

    home = choose_device(device)
    files = (run, model, weights, initial, data)
    if verify is not None:
        with importable(Path.cwd()):
            certificate = Certificate.load(verify)
            evidence = _subject(*files, root=root, seed=data_seed) if any(files) else None
            with _bar(Console(stderr=True, quiet=quiet or as_json)) as tell:
                result = verification.check(certificate, evidence, home, seed=seed, progress=tell)
        verification.show(certificate, result, as_json=as_json)
        return
    place = out or (run or Path()) / "certificate.json"
    if out is not None or run is None:
        check_place(place)  # a missing run is reported first
    outputs = {"--out": place, "posterior": posterior_file(place), "parts": parts_folder(place)}
    check_apart(outputs, _inputs(*files))
    settings = settings_of(method, epochs, delta, draw_delta, slack, prior_split)
    with importable(Path.cwd()):
        subject, before = _subject(*files, root=root, seed=data_seed)
    check_place(place)
    subject.model.to(home)
    if dry_run or not (quiet or as_json or place.exists()):
        problem = examples(subject.model, subject.data.train)
        forecast = estimate_certificate(problem, settings["method"])
        tell_estimate(forecast, problem, stop=dry_run, as_json=as_json)
    if dry_run:
        return
    advice = f"what is finished lies in {parts_folder(place)}: the same command goes on from there"
    with (
        stoppable(advice, parts_folder(place)),
        _bar(Console(stderr=True, quiet=quiet or as_json)) as tell,
    ):
        finished = certified(
            place, subject.model, before, subject.data.train, seed=seed, again=again,
            test=subject.data.test, progress=tell, **settings,
        )  # fmt: skip
    _show_saved(place, before=finished, as_json=as_json)


def check_place(place: Path) -> None:
    """Refuse a place that no certificate can be written to, before any work is done for it.

    Raises:
        CurvescopeError: If it is a folder, or its folder is not there or cannot be written.
    """
    if place.is_dir() or place.suffix in (".safetensors", ".parts"):
        rule = "must be a file for the certificate, such as certificate.json"
        raise CurvescopeError(f"--out {str(place)!r}", rule)
    if not place.parent.is_dir():
        rule = f"{str(place.parent)!r} is not a folder that exists"
        raise CurvescopeError(f"--out {str(place)!r}", rule, remedy="make it")
    if not place.exists() and not writable(place.parent):
        rule = "cannot be written (Permission denied)"
        raise CurvescopeError(repr(str(place)), rule, remedy="name another file with --out")


def _show_saved(place: Path, *, before: bool, as_json: bool) -> None:
    from curvescope import io
    from curvescope.certificates import Certificate

    if as_json:
        typer.echo(json.dumps({**io.read_json(place), "file": str(place)}, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    if before:
        console.print(
            "certified before with the same settings and checked again; --again computes it anew"
        )
    show(Certificate.load(place), place, console)


def show(certificate: Certificate, place: Path, console: Console) -> None:
    """Print the bound, its terms, the errors that are not certified, and the statement."""
    from curvescope.certificates.divergence import decimal_upwards

    c = certificate
    table = Table(show_header=False)
    error = f"{c.empirical_error:.4f}, at most {decimal_upwards(c.error_bound, 4)}"
    table.add_row("bound", f"[bold]{decimal_upwards(c.bound, 4)}[/bold]")
    table.add_row("confidence", str(c.confidence.level))
    table.add_row("stochastic error", error)
    table.add_row("draws", f"{c.draws.count:,} of {c.draws.block:,} example(s)")
    table.add_row("KL(Q‖P)", f"{c.kl:.1f}")
    table.add_row("prior grid, confidence", f"{c.terms.grid:.1f}, {c.terms.confidence:.1f}")
    for term in c.prior:
        names = ", ".join(term.layers)
        table.add_row(f"prior variance of {names}", f"{term.variance:.4g}")
    for name, value in asdict(c.orientation).items():
        if value is not None:
            table.add_row(f"{name.replace('_', ', ')} (not certified)", f"{value:.4f}")
    console.print(table)
    console.print(c.statement, markup=False)
    if c.vacuous:
        console.print("[yellow]The bound is vacuous[/yellow]: more data or more epochs may help.")
    console.print(f"certificate: {place}", markup=False)


# Input ----------------------------------------------------------------------------------


def settings_of(
    method: str,
    epochs: int | None,
    delta: float,
    draw_delta: float,
    slack: float | None,
    prior_split: float | None,
) -> dict[str, Any]:
    """The arguments of the certificate, checked before anything is loaded."""
    from curvescope.certificates import Confidence, posterior_method
    from curvescope.certificates.evaluate import check_slack

    check_slack(slack)
    if prior_split is not None and not 0 < prior_split < 1:
        rule = "--prior-split must be a share between 0 and 1"
        raise CurvescopeError("certify", rule, given=f"{prior_split:g}")
    changes = {} if epochs is None else {"epochs": epochs}
    return {
        "method": posterior_method(method, **changes),
        "confidence": Confidence(delta, draw_delta),
        "slack": slack,
        "prior_split": prior_split,
    }


def _inputs(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    initial: Path | None,
    data: str | None,
) -> dict[str, Path | None]:
    """The files that will be read, by their options; for code, the file that holds it."""
    code = {"--model": model, "--data": data}
    files = {name: None if text is None else Path(text.rpartition(":")[0] or text)
             for name, text in code.items()}  # fmt: skip
    records = {} if run is None else {
        "the run's configuration": run / "config.json", "the run's result": run / "result.json"
    }  # fmt: skip
    return {"--weights": weights, "--initial": initial, **files, **records}


def _subject(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    initial: Path | None,
    data: str | None,
    *,
    root: Path | None,
    seed: int | None,
) -> tuple[Subject, Path]:
    """Network and data, from a run or from the user's code and files, and the initial weights."""
    from curvescope.cli import inputs
    from curvescope.training.folder import TrainingFolder

    if model is not None:
        check_code("--model", model)
    if run is not None:
        if any(option is not None for option in (model, weights, initial)):
            rule = "RUN brings its own network and weights"
            raise CurvescopeError("certify", rule, remedy="give either RUN or --model")
        subject = inputs.of_run(run, data, root=root, seed=seed)
        return subject, TrainingFolder(run).weights("initial")
    if model is None or weights is None or initial is None or data is None:
        rule = "needs the folder of a run, or --model, --weights, --initial and --data"
        raise CurvescopeError("certify", rule, remedy="curvescope certify --help shows how")
    return inputs.of_code(model, data, weights, root=root, seed=seed), initial


# The terminal ---------------------------------------------------------------------------


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[certificates.Progress], None]]:
    """A bar with the task, the bound so far and the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[numbers]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=1, numbers="")
        words = {"optimize": "bound about", "draw": "error"}

        def tell(progress: certificates.Progress) -> None:
            check()
            if bar.tasks[0].description != progress.task:
                bar.reset(task, description=progress.task)
            bar.update(
                task,
                description=progress.task,
                completed=progress.done,
                total=progress.total,
                numbers=f"{words[progress.task]} {progress.bound:.4f}",
            )

        yield tell
