"""``curvescope train``: a network by its name, data by its name, and a folder with the outcome.

References:
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from curvescope._checks import one_of
from curvescope._numbers import short
from curvescope.cli.interrupts import check, stoppable
from curvescope.cli.options import AsJson, Debug, Device, Quiet, Root
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from torch import nn

    from curvescope.experiments.training import NamedData
    from curvescope.training import loop
    from curvescope.training.recipe import Recipe
    from curvescope.training.run import Trained

TRACES = ("ggn", "hessian")
MONITORS = ("economy", "standard", "full")


def train(
    network: Annotated[
        str, typer.Argument(metavar="NETWORK", help="F-200^2, LeNet5, VGG11-W48, GPT-4x128, …")
    ],
    data: Annotated[
        str,
        typer.Option(metavar="NAME", help="mnist, cifar-10, python-topics, …; -R: random labels."),
    ],
    root: Root = None,
    normalize: Annotated[str, typer.Option(metavar="HOW", help="none, pixel or channel.")] = "none",
    per_class: Annotated[
        int | None, typer.Option(metavar="N", help="Train on so many of each class.")
    ] = None,
    data_seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="For random labels, sub-samples, mixtures."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Passes over the data; 30, 10 for a GPT.")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="The initial learning rate; 0.05, 0.001 for adam."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Samples in a step; 128, 16 for a GPT.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="sgd, adam, adamw (for a GPT) or gadam."),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(metavar="M", help="Of sgd; 0.9 if none.")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="W", help="Decoupled for adamw and gadam; 0.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="linear, constant, averaging, step or cosine."),
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(metavar="EPOCHS", help="The rate grows from 0 during this time."),
    ] = None,
    average_from: Annotated[
        int | None, typer.Option(metavar="N", help="Average the weights of later epochs.")
    ] = None,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help="cross_entropy or binary_logistic.")
    ] = "cross_entropy",
    trace_weight: Annotated[
        float | None,
        typer.Option(metavar="W", help="Add W times the trace of the curvature to the loss."),
    ] = None,
    trace_of: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose trace: ggn (if none) or hessian.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="pytorch, xavier, dziugaite-roy or gpt-2."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Initial weights and order of samples.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder; runs/NETWORK-DATA-seedN if none."),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Keep the weights after these epochs: 1,10."),
    ] = None,
    monitor: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Watch the curvature: economy (1 % more time), standard (5) or full (10).",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a network of the papers into a folder: weights, log, configuration.

    Ctrl-C keeps the epochs so far; the same command with --resume goes on.

    \b
    curvescope train LeNet5 --data mnist-6k
    curvescope train F-200^2 --data mnist --root data --checkpoints 1,10
    curvescope train GPT-4x128 --data python-topics
    curvescope train LeNet5 --data mnist-6k --monitor standard
    curvescope train T-100 --data mnist-6k-2 --loss binary_logistic \\
        --out runs/binary
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    trace = trace_penalty(trace_of, trace_weight)
    if monitor is not None:
        one_of("train", "monitor", monitor, MONITORS)
    epochs_saved = None if checkpoints is None else epochs_in(checkpoints)

    from curvescope.cli.inputs import choose_device
    from curvescope.data.normalize import KINDS, Kind
    from curvescope.experiments.training import named_data, train_network, usual_recipe
    from curvescope.training.recipe import OPTIMIZERS

    if optimizer is not None:
        one_of("train", "optimizer", optimizer, OPTIMIZERS)
    kind = cast(Kind, one_of("train", "normalize", normalize, KINDS))
    place = out or Path("runs") / f"{network}-{data}-seed{seed}"
    recipe = usual_recipe(
        network,
        seed=seed,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        optimizer=optimizer,
        momentum=momentum,
        weight_decay=weight_decay,
        schedule=schedule,
        warmup=warmup,
        average_from=average_from,
        loss=loss,
        checkpoints=epochs_saved,
    )
    home = choose_device(device)
    splits = named_data(data, root=root, normalize=kind, per_class=per_class, seed=data_seed)
    console = Console(stderr=True, quiet=quiet or as_json)
    advice = f"the epochs so far are in {place}: the same command with --resume goes on"
    if resume and not (place / "config.json").exists():
        console.print(f"nothing to continue in {place}: this is a new training", markup=False)
    with stoppable(advice, place / "config.json"), _bar(console, recipe) as tell:
        model, result = train_network(
            network,
            splits,
            recipe,
            folder=place,
            init=init or _default_init(network),
            device=home,
            resume=resume,
            trace=trace,
            monitor=None if monitor is None else _watched(monitor, console),
            tell=tell,
        )
    if as_json:
        typer.echo(json.dumps(_summary(network, model, splits, result), indent=2))
    else:
        show(network, model, splits, result, Console(highlight=False, soft_wrap=True))
    if result.diverged is not None:
        raise typer.Exit(1)


def _watched(track: str, console: Console) -> dict[str, Any]:
    """The monitor's options: its price is printed before the first step, and what rings."""

    def say(text: object) -> None:
        console.print(str(text), markup=False, highlight=False)

    return {
        "track": track,
        "on_start": lambda monitor: say(f"monitor: {monitor.price}"),
        "on_event": say,
    }


def _default_init(network: str) -> str | None:
    """With PyTorch's own initialization a VGG without batch norm does not begin to learn."""
    plain_vgg = network.upper().startswith("VGG") and not network.upper().endswith("-BN")
    return "xavier" if plain_vgg else None


def trace_penalty(of: str | None, weight: float | None) -> tuple[str, float] | None:
    """The matrix whose trace is penalized, and the weight; None without a penalty."""
    if of is not None:
        one_of("train", "trace_of", of, TRACES)
        if weight is None:
            rule = f"--trace-of {of} needs --trace-weight, how much its trace is penalized"
            raise CurvescopeError("train", rule)
    if weight is not None and not 0 <= weight < float("inf"):
        rule = "--trace-weight must be a number of at least 0"
        raise CurvescopeError("train", rule, given=f"{weight:g}")
    return (of or TRACES[0], weight) if weight else None


def epochs_in(text: str) -> tuple[int, ...]:
    """The epochs of --checkpoints."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        rule = "--checkpoints must be epochs with commas between, as 1,10,100"
        raise CurvescopeError("train", rule, given=repr(text)) from None


# The outcome ----------------------------------------------------------------------------


def show(name: str, model: nn.Module, splits: NamedData, result: Trained, console: Console) -> None:
    """Print the network, its fit, and its folder."""
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
            wrong = round(fit.error * split.y.numel())
            table.add_row(split.split, short(fit.loss), f"{fit.accuracy:.2%}", f"{wrong:,}")
    console.print(table)
    if len(splits.train.y) < splits.train.y.numel():
        console.print("of all characters: the loss is the mean −log p of the next one, in nats")
    if result.train is not None and result.train.accuracy < 1.2 / splits.train.classes:
        console.print(
            "[yellow]It has learned next to nothing[/yellow]: try another --lr, more --epochs, "
            "--init xavier, or the network with -BN after its name."
        )
    if recipe.average_from is not None:
        console.print(f"for the average of the weights of the epochs after {recipe.average_from}")
    console.print(_time(len(result.history), result.seconds))
    console.print(f"weights: {result.folder}/weights/final.safetensors", markup=False)
    if result.folder is not None and (result.folder / "monitor.jsonl").exists():
        console.print(
            f"curvature: {result.folder}/monitor.jsonl; "
            f"curvescope view {result.folder.parent} shows it",
            markup=False,
        )


def _time(epochs: int, seconds: float) -> str:
    if epochs == 1:
        return f"1 epoch in {seconds:.1f} s"
    return f"{epochs} epochs in {seconds:.1f} s, {seconds / epochs:.3g} s each"


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
            check()
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
