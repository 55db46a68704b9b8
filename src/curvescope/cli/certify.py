"""``curvescope certify``: a bound on the error of new examples, and the check of such a bound."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from curvescope import certificates, io
from curvescope._checks import CurvescopeError
from curvescope.certificates import Certificate, Confidence, Verification, posterior_method
from curvescope.cli.progress import stoppable
from curvescope.experiments import load, trained

Subject = tuple[nn.Module, Any, load.Splits]  # the network, its initial weights, its data


def certify(
    run: Annotated[
        Path | None, typer.Argument(help="The folder of a finished curvescope train run.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="pkg.module:build or file.py:build; T-600, LeNet5, …")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="The trained weights, a .safetensors file.")
    ] = None,
    initial: Annotated[
        Path | None, typer.Option(help="The weights before training, a .safetensors file.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="pkg.module:load, file.py:load, arrays.npz, mnist-6k-2, …")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The folder with the data files.")] = None,
    data_seed: Annotated[
        int | None, typer.Option(help="The seed of random labels or sub-samples, as in training.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="local, or DH's base, appr, iter, 'iter(d)', iter.m.")
    ] = "local",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; the method's own if none.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The risk that the sample misleads.")] = 0.025,
    draw_delta: Annotated[float, typer.Option(help="The risk that the draws mislead.")] = 0.01,
    slack: Annotated[
        float | None, typer.Option(help="What the draws may add to the error; decides how many.")
    ] = None,
    prior_split: Annotated[
        float | None, typer.Option(help="Train the prior mean on this share of the data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The certificate's file; RUN/certificate.json if none.")
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(help="Check this certificate instead of making one.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Certify a trained network's error on new examples, as a stochastic network (PAC-Bayes).

    The bound holds for weights drawn from a Gaussian around the trained ones. --verify FILE checks
    a certificate: alone its arithmetic, with the run or --model and --data fresh draws as well.

    \b
    curvescope train T-100 --data mnist-6k-2 --loss binary_logistic --out runs/binary
    curvescope certify runs/binary
    curvescope certify --verify runs/binary/certificate.json runs/binary
    curvescope certify --model net.py:build --weights w.safetensors --initial w0.safetensors \\
        --data net.py:load --out certificate.json
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    home = load.choose_device(device)
    with load.importable(Path.cwd()):
        if verify is not None:
            _verify(verify, run, model, data, root, data_seed, seed, home, as_json=as_json)
            return
        subject = _subject(run, model, weights, initial, data, root=root, seed=data_seed)
    place = out or (run / "certificate.json" if run is not None else Path("certificate.json"))
    if place.is_dir():
        msg = f"--out {str(place)!r}: is a folder; name a file for the certificate"
        raise CurvescopeError(msg)
    changes = {} if epochs is None else {"epochs": epochs}
    network, prior, splits = subject
    parts = place.with_suffix(".parts")
    advice = f"what is finished lies in {parts}: the same command goes on from there"
    with stoppable(advice), _bar(Console(stderr=True, quiet=quiet or as_json)) as tell:
        certificate = certificates.certify(
            network.to(home),
            prior,
            splits.train,
            generator=torch.Generator().manual_seed(seed),
            method=posterior_method(method, **changes),
            test=splits.test,
            confidence=Confidence(delta, draw_delta),
            slack=slack,
            prior_split=prior_split,
            checkpoint=parts,
            progress=tell,
        )
    certificate.save(place)
    shutil.rmtree(parts, ignore_errors=True)
    if as_json:
        typer.echo(json.dumps({**io.read_json(place), "file": str(place)}, indent=2))
    else:
        show(certificate, place, Console(highlight=False, soft_wrap=True))


def show(certificate: Certificate, place: Path, console: Console) -> None:
    """Print the bound, what it is made of, errors for orientation, and what it says."""
    c = certificate
    table = Table(show_header=False)
    table.add_row("bound", f"[bold]{c.bound:.4f}[/bold]")
    table.add_row("confidence", f"{c.confidence.level:g}")
    table.add_row("stochastic error", f"{c.empirical_error:.4f}, at most {c.error_bound:.4f}")
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


# What to certify ------------------------------------------------------------------------


def _subject(
    run: Path | None,
    model: str | None,
    weights: Path | None,
    initial: Path | None,
    data: str | None,
    *,
    root: Path | None,
    seed: int | None,
) -> Subject:
    """Network, initial weights and data, from a run or from what the user names."""
    if run is not None:
        if any(given is not None for given in (model, weights, initial)):
            msg = "certify: RUN brings its own network and weights; give either RUN or --model"
            raise CurvescopeError(msg)
        trained.run_config(run)
        splits = (
            trained.load_run_data(run, root=root, seed=seed)
            if data is None
            else load.load_data(data, root=root, seed=seed)
        )
        return trained.load_run(run), run / "weights" / "initial.safetensors", splits
    if model is None or weights is None or initial is None or data is None:
        msg = (
            "certify: needs the folder of a run, or --model, --weights, --initial and --data; "
            "curvescope certify --help shows how"
        )
        raise CurvescopeError(msg)
    splits = load.load_data(data, root=root, seed=seed)
    network = load.load_model(model, splits.train)
    load.read_weights(weights, network)
    return network, initial, splits


def _verify(
    file: Path,
    run: Path | None,
    model: str | None,
    data: str | None,
    root: Path | None,
    data_seed: int | None,
    seed: int,
    home: torch.device,
    *,
    as_json: bool,
) -> None:
    certificate = Certificate.load(file)
    network, examples = None, None
    if run is not None:
        network = trained.load_run(run)
        splits = (
            trained.load_run_data(run, root=root, seed=data_seed)
            if data is None
            else load.load_data(data, root=root, seed=data_seed)
        )
        examples = splits.train
    elif model is not None and data is not None:
        examples = load.load_data(data, root=root, seed=data_seed).train
        network = load.load_model(model, examples)
    elif model is not None or data is not None:
        msg = "certify --verify: fresh draws need both --model and --data, or the folder of a run"
        raise CurvescopeError(msg)
    result = certificate.verify(
        model=None if network is None else network.to(home),
        data=examples,
        generator=torch.Generator().manual_seed(seed),
    )
    _report(certificate, result, as_json=as_json)
    if not result.passed:
        raise typer.Exit(1)


def _report(certificate: Certificate, result: Verification, *, as_json: bool) -> None:
    if as_json:
        checks = [asdict(check) for check in result.checks]
        typer.echo(json.dumps({"passed": result.passed, "checks": checks}, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    for check in result.checks:
        mark = "[green]holds[/green]" if check.passed else "[red]fails[/red]"
        console.print(mark, end=" ")
        console.print(f" {check.what}: {check.detail}", markup=False)
    verdict = "[green]verified[/green]" if result.passed else "[red]refuted[/red]"
    console.print(f"bound {certificate.bound:.4f}: {verdict}")


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
        words = {"optimise": "bound about", "draw": "error"}

        def tell(progress: certificates.Progress) -> None:
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
