"""``curvescope train``: a network by its name, data by its name, and a folder with the outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from curvescope._checks import CurvescopeError, one_of
from curvescope.cli.progress import stoppable
from curvescope.data.normalise import KINDS, Kind
from curvescope.experiments.load import choose_device
from curvescope.experiments.training import NamedData, named_data, train_network
from curvescope.training import loop
from curvescope.training.recipe import Recipe
from curvescope.training.run import Trained


def train(
    network: Annotated[str, typer.Argument(help="F-200^2, LeNet5, VGG11-W48, ResNet18-W64, …")],
    data: Annotated[str, typer.Option(help="mnist, cifar-10, mnist-6k, …; -R: random labels.")],
    root: Annotated[Path | None, typer.Option(help="The folder with the data files.")] = None,
    normalise: Annotated[str, typer.Option(help="none, pixel or channel.")] = "none",
    per_class: Annotated[int | None, typer.Option(help="Train on so many of each class.")] = None,
    data_seed: Annotated[
        int | None, typer.Option(help="For random labels, random sub-samples, mixtures.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 30,
    lr: Annotated[float, typer.Option(help="The initial learning rate.")] = 0.1,
    batch_size: Annotated[int, typer.Option(help="Samples in a step.")] = 128,
    optimizer: Annotated[str, typer.Option(help="sgd, adam, adamw or gadam.")] = "sgd",
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.0,
    weight_decay: Annotated[float, typer.Option(help="Decoupled for adamw and gadam.")] = 0.0,
    schedule: Annotated[str, typer.Option(help="constant, linear, averaging, step.")] = "constant",
    average_from: Annotated[
        int | None, typer.Option(help="Average the weights of the epochs after this one.")
    ] = None,
    loss: Annotated[
        str, typer.Option(help="cross_entropy, or binary_logistic with one output.")
    ] = "cross_entropy",
    trace_weight: Annotated[
        float, typer.Option(min=0, help="Penalise the trace of the curvature (PP eq. 13).")
    ] = 0.0,
    trace_of: Annotated[str, typer.Option(help="Whose trace: ggn or hessian.")] = "ggn",
    init: Annotated[str | None, typer.Option(help="pytorch, xavier or dziugaite-roy.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Initial weights and order of samples.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder; runs/<network>-<data>-seed<seed> if none."),
    ] = None,
    checkpoints: Annotated[
        str, typer.Option(help="Keep the weights after these epochs: 1,10.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Train a network of the papers into a folder: weights, log, configuration.

    Ctrl-C keeps the epochs so far; the same command with --resume goes on.

    \b
    curvescope train LeNet5 --data mnist-6k --epochs 10 --lr 0.05 --momentum 0.9
    curvescope train F-200^2 --data mnist --root data --normalise channel --checkpoints 1,10
    curvescope train T-100 --data mnist-6k-2 --loss binary_logistic --out runs/binary
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    place = out or Path("runs") / f"{network}-{data}-seed{seed}"
    recipe = Recipe(
        seed=seed,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=weight_decay,
        schedule=schedule,
        average_from=average_from,
        loss=loss,
        checkpoints=_epochs(checkpoints),
    )
    home = choose_device(device)
    kind = cast(Kind, one_of("train", "--normalise", normalise, KINDS))
    splits = named_data(data, root=root, normalise=kind, per_class=per_class, seed=data_seed)
    console = Console(stderr=True, quiet=quiet or as_json)
    advice = f"the epochs so far are in {place}: the same command with --resume goes on"
    with stoppable(advice), _bar(console, recipe) as tell:
        model, result = train_network(
            network,
            splits,
            recipe,
            folder=place,
            init=init,
            device=home,
            resume=resume,
            trace=(trace_of, trace_weight) if trace_weight else None,
            tell=tell,
        )
    if as_json:
        typer.echo(json.dumps(_summary(network, model, splits, result), indent=2))
    else:
        show(network, model, splits, result, Console(highlight=False, soft_wrap=True))
    if result.diverged is not None:
        raise typer.Exit(1)


def show(name: str, model: nn.Module, splits: NamedData, result: Trained, console: Console) -> None:
    """Print what was trained, how well it fits, and where it lies."""
    recipe = result.recipe
    console.print(f"{name} ({_size(model):,} parameters) on {splits.name}, seed {recipe.seed}")
    if result.diverged is not None:
        console.print(
            f"[red]diverged[/red]: the loss was not finite in epoch {result.diverged}; "
            f"try a learning rate below {recipe.lr:g}"
        )
        return
    table = Table()
    table.add_column("")
    for column in ("loss", "accuracy", "wrong"):
        table.add_column(column, justify="right")
    for split, fit in ((splits.train, result.train), (splits.test, result.test)):
        if fit is not None:
            wrong = round((1 - fit.accuracy) * len(split))
            table.add_row(split.split, f"{fit.loss:.4g}", f"{fit.accuracy:.2%}", f"{wrong:,}")
    console.print(table)
    if recipe.average_from is not None:
        console.print(f"for the average of the weights of the epochs after {recipe.average_from}")
    pace = result.seconds / len(result.history)
    console.print(f"{len(result.history)} epochs in {result.seconds:.1f} s, {pace:.3g} s each")
    console.print(f"weights: {result.folder}/weights/final.safetensors", markup=False)


def _summary(name: str, model: nn.Module, splits: NamedData, result: Trained) -> dict[str, Any]:
    last = result.history[-1] if result.history else None
    return {
        "network": name,
        "parameters": _size(model),
        "data": splits.name,
        "recipe": asdict(result.recipe),
        "train": asdict(result.train) if result.train else None,
        "test": asdict(result.test) if result.test else None,
        "diverged": result.diverged,
        "last_epoch": asdict(last) if last else None,
        "seconds": result.seconds,
        "folder": str(result.folder),
    }


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _epochs(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        msg = f"train: --checkpoints must be epochs with commas between, as 1,10,100, got {text!r}"
        raise CurvescopeError(msg) from None


@contextmanager
def _bar(console: Console, recipe: Recipe) -> Iterator[loop.Tell]:
    """A bar with the last epoch's loss and accuracies and the time left."""
    columns = (
        TextColumn("epoch {task.fields[epoch]}/" + str(recipe.epochs)),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, epoch=0, numbers="")

        def tell(progress: loop.Progress) -> None:
            last = progress.epochs[0]
            numbers = ""
            if last is not None:
                numbers = f"loss {last.loss:.4f}  accuracy {last.accuracy:.2%}"
                if last.test_accuracy is not None:
                    numbers += f"  test {last.test_accuracy:.2%}"
            epoch = last.epoch + 1 if last else 1
            bar.update(
                task, completed=progress.done, total=progress.total, epoch=epoch, numbers=numbers
            )

        yield tell
