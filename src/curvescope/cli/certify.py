"""``curvescope certify``: a bound on the error of new examples, and the check of such a bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from curvescope._checks import CurvescopeError
from curvescope.cli.interrupts import check, stoppable
from curvescope.cli.options import AsJson, DataSeed, Debug, Device, Quiet, Root, Seed, check_code

if TYPE_CHECKING:
    from curvescope import certificates
    from curvescope.certificates import Certificate, Confidence, Method
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
        typer.Option(metavar="NAME", help="local, or DH's base, appr, iter, 'iter(d)', iter.m."),
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
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Certify a trained network's error on new examples (PAC-Bayes).

    The bound holds for weights drawn from a Gaussian around the trained ones. A
    finished certificate is shown, one of other settings is replaced by --again
    alone. --verify FILE checks one: alone its arithmetic, with the run or
    --model and --data fresh draws as well.

    \b
    curvescope train T-100 --data mnist-6k-2 --loss binary_logistic \\
        --out runs/binary
    curvescope certify runs/binary
    curvescope certify --verify runs/binary/certificate.json runs/binary
    curvescope certify --model net.py:build --weights w.safetensors \\
        --initial w0.safetensors --data net.py:load --out certificate.json
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    import torch

    from curvescope import certificates
    from curvescope.certificates import Certificate
    from curvescope.cli import verification
    from curvescope.cli.claim import Claim, check_place, described
    from curvescope.cli.inputs import choose_device
    from curvescope.experiments.load import importable

    home = choose_device(device)
    if verify is not None:
        with importable(Path.cwd()):
            certificate = Certificate.load(verify)
            known = _named_subject(run, model, data, root=root, seed=data_seed)
            verification.check(certificate, known, home, seed=seed, as_json=as_json)
        return
    place = out or (run or Path()) / "certificate.json"
    if out is not None or run is None:
        check_place(place)  # a run that is not there is a mistake of its own
    chosen, confidence = _settings(method, epochs, delta, draw_delta, slack, prior_split)
    with importable(Path.cwd()):
        subject, before = _subject(run, model, weights, initial, data, root=root, seed=data_seed)
    check_place(place)
    subject.model.to(home)
    asked = {
        "delta": confidence.sample,
        "draw_delta": confidence.draws,
        "slack": slack,
        "prior_split": prior_split,
        "seed": seed,
    }
    claim = Claim(place, {**described(subject, before, chosen), **asked})
    finished = claim.finished(again=again)
    if not finished:
        advice = f"what is finished lies in {claim.parts}: the same command goes on from there"
        with (
            stoppable(advice, claim.parts),
            claim.work() as parts,
            _bar(Console(stderr=True, quiet=quiet or as_json)) as tell,
        ):
            certificates.certify(
                subject.model,
                before,
                subject.data.train,
                generator=torch.Generator().manual_seed(seed),
                method=chosen,
                test=subject.data.test,
                confidence=confidence,
                slack=slack,
                prior_split=prior_split,
                checkpoint=parts,
                progress=tell,
            ).save(place, claim.configuration)
            claim.remove_parts()
    _show_saved(place, before=finished, as_json=as_json)


def _show_saved(place: Path, *, before: bool, as_json: bool) -> None:
    from curvescope import io
    from curvescope.certificates import Certificate

    if as_json:
        typer.echo(json.dumps({**io.read_json(place), "file": str(place)}, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    if before:
        console.print("certified before with the same settings; --again computes it anew")
    show(Certificate.load(place), place, console)


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


def _settings(
    method: str,
    epochs: int | None,
    delta: float,
    draw_delta: float,
    slack: float | None,
    prior_split: float | None,
) -> tuple[Method, Confidence]:
    """Method and risks, if they are in order; nothing has been loaded yet."""
    from curvescope.certificates import Confidence, posterior_method
    from curvescope.certificates.evaluate import check_slack

    check_slack(slack)
    if prior_split is not None and not 0 < prior_split < 1:
        msg = f"certify: --prior-split must be a share between 0 and 1, got {prior_split:g}"
        raise CurvescopeError(msg)
    changes = {} if epochs is None else {"epochs": epochs}
    return posterior_method(method, **changes), Confidence(delta, draw_delta)


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
    """Network and data, from a run or from what the user names, and the initial weights."""
    from curvescope.cli import inputs
    from curvescope.training.folder import TrainingFolder

    if model is not None:
        check_code("--model", model)
    if run is not None:
        if any(given is not None for given in (model, weights, initial)):
            msg = "certify: RUN brings its own network and weights; give either RUN or --model"
            raise CurvescopeError(msg)
        subject = inputs.of_run(run, data, root=root, seed=seed)
        return subject, TrainingFolder(run).weights("initial")
    if model is None or weights is None or initial is None or data is None:
        msg = (
            "certify: needs the folder of a run, or --model, --weights, --initial and --data; "
            "curvescope certify --help shows how"
        )
        raise CurvescopeError(msg)
    return inputs.own(model, data, weights, root=root, seed=seed), initial


def _named_subject(
    run: Path | None, model: str | None, data: str | None, *, root: Path | None, seed: int | None
) -> Subject | None:
    """What a certificate is to be held against, if anything is named."""
    from curvescope.cli import inputs

    if run is not None:
        return inputs.of_run(run, data, root=root, seed=seed)
    if model is not None and data is not None:
        return inputs.own(model, data, None, root=root, seed=seed)
    if model is not None or data is not None:
        msg = "certify --verify: fresh draws need both --model and --data, or the folder of a run"
        raise CurvescopeError(msg)
    return None


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
