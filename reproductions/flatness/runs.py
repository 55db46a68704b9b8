"""What the reproductions of FF and PP share: data, training of several recipes, reports, tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from curvescope import io
from curvescope.data import Dataset, dataset
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.sharpness import Comparison, SharpnessReport, sharpness
from curvescope.training import Progress, Recipe, Trained, train

DECAYS = (0.0, 1e-4, 5e-4)


def arguments(description: str | None, *, epochs: int, device: str = "cpu") -> argparse.Namespace:
    """The command line that all scripts have."""
    parser = options(description, epochs=epochs, device=device)
    return parser.parse_args()


def options(description: str | None, *, epochs: int, device: str = "cpu") -> Any:
    """The same as a parser, to which a script may add."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", help="where the data sets lie")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=device, help=f"default {device}")
    parser.add_argument(
        "--pixels", choices=["standardised", "-1..1"], help="default -1..1 for digits"
    )
    parser.add_argument("--samples", type=int, help="train on so many samples only (a try-out)")
    parser.add_argument(
        "--curvature-samples", type=int, help="measure curvature on so many of them (default all)"
    )
    return parser


def splits(
    name: str, args: argparse.Namespace, *, train: int | None = None, held_out: int | None = None
) -> tuple[Dataset, Dataset]:
    """Training and held-out data: a random cut of the training split, or the test split."""
    whole = load(name, args)
    g = torch.Generator().manual_seed(args.seed)
    order = torch.randperm(len(whole), generator=g)
    first = args.samples or train or len(whole)
    kept = part(whole, order[:first])
    if held_out is None:
        test = load(name, args, split="test")
        test = part(test, torch.arange(min(len(test), first)))
    else:
        start = train or first
        test = part(whole, order[start : start + min(held_out, first)])
    return kept.to(args.device), test.to(args.device)


def load(name: str, args: argparse.Namespace, split: str = "train") -> Dataset:
    """A split, its pixels of mean 0 and variance 1 by channel, or from −1 to 1.

    FF and PP do not say what they did. For digits from −1 to 1 the eigenvalues come out in the
    range of FF's figures; standardised ones give about half of their λ_max.
    """
    pixels = args.pixels or ("-1..1" if name == "mnist" else "standardised")
    if pixels == "standardised":
        return dataset(name, root=args.root, split=split, normalise="channel")
    data = dataset(name, root=args.root, split=split)
    return replace(data, X=2 * data.X - 1)


def part(data: Dataset, rows: torch.Tensor) -> Dataset:
    """Some samples of a data set."""
    return replace(data, X=data.X[rows], y=data.y[rows])


def fresh(name: str, data: Dataset, args: argparse.Namespace) -> nn.Module:
    """The network with the weights of the seed, the same for all recipes."""
    g = torch.Generator().manual_seed(args.seed)
    return network(name, data.input_shape, data.classes, generator=g).to(args.device)


class Teller:
    """Prints where a training is, every few seconds."""

    def __init__(self, name: str, every: float = 10.0) -> None:
        self._name, self._every, self._last = name, every, time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        """After each stretch of steps."""
        now, epoch = time.perf_counter(), progress.epochs[0]
        if now - self._last >= self._every and epoch is not None:
            self._last = now
            test = "" if epoch.test_accuracy is None else f", test {epoch.test_accuracy:.4f}"
            say(f"{self._name}: epoch {epoch.epoch}, loss {epoch.loss:.4f}{test}")


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


@dataclass(frozen=True)
class Finished:
    """A trained network with how it was trained."""

    name: str
    model: nn.Module
    trained: Trained


def train_all(
    what: str,
    recipes: Mapping[str, Recipe],
    train_data: Dataset,
    test_data: Dataset,
    args: argparse.Namespace,
    *,
    penalties: Mapping[str, Any] | None = None,
) -> list[Finished]:
    """One network for each recipe, from the same weights."""
    done = []
    for name, recipe in recipes.items():
        model = fresh(what, train_data, args)
        start = time.perf_counter()
        trained = train(
            model,
            train_data,
            recipe,
            test=test_data,
            penalty=(penalties or {}).get(name),
            tell=Teller(name),
        )
        if trained.train is None or trained.test is None:
            say(f"{name}: diverged in epoch {trained.diverged}")
            continue
        say(
            f"{name}: train {trained.train.accuracy:.4f} ({trained.train.loss:.4g}), held out "
            f"{trained.test.accuracy:.4f} ({trained.test.loss:.4g}), "
            f"{time.perf_counter() - start:.0f} s"
        )
        done.append(Finished(name, model, trained))
    return done


def problem(
    model: nn.Module, data: Dataset, args: argparse.Namespace, *, mode: str = "eval", size: int = 0
) -> Problem:
    """The curvature problem on the training data, or on the first samples of it."""
    count = min(args.curvature_samples or len(data), len(data))
    few = part(data, torch.arange(count, device=data.X.device))
    batch = size or (512 if args.device == "cuda" else 2048)
    return Problem(model, few.batches(batch), mode=mode)


def report(
    finished: Finished, train_data: Dataset, test_data: Dataset, args: argparse.Namespace,
    *, mode: str = "eval", size: int = 0, **settings: Any,
) -> SharpnessReport:  # fmt: skip
    """The sharpness report of a trained network, printed in one line."""
    start = time.perf_counter()
    g = torch.Generator().manual_seed(args.seed)
    batch = size or 500
    found = sharpness(
        problem(finished.model, train_data, args, mode=mode, size=size),
        test=test_data.batches(batch),
        generator=g,
        **settings,
    )
    H = found.hessian
    say(
        f"{finished.name} ({mode}): λ_max {H.largest.value:.4g} ± {H.largest.bias:.1g}, tr/P "
        f"{H.mean_eigenvalue.value:.4g} ± {H.mean_eigenvalue.stderr:.1g}, tr H²/P "
        f"{H.mean_square.value:.4g} ± {H.mean_square.stderr:.1g}, ‖w‖ {found.weights.norm:.4g}, "
        f"{time.perf_counter() - start:.0f} s"
    )
    return found


def save(args: argparse.Namespace, **content: Any) -> None:
    """The results with the command line that made them."""
    settings = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in vars(args).items()
        if key not in ("root", "out")
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    io.write_json(
        args.out, {"settings": settings, "torch": torch.__version__, "device": device, **content}
    )
    say(f"written to {args.out}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table in Markdown, as it goes into the README."""
    say("| " + " | ".join(header) + " |")
    say("|" + "---|" * len(header))
    for row in rows:
        cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        say("| " + " | ".join(cells) + " |")


def print_findings(compared: Comparison) -> None:
    """FF's question, answered for each mode of the batch norms."""
    for mode in dict.fromkeys(compared.modes):
        for figure in ("test error", "loss gap"):
            say(f"[{mode}] {compared.finding(figure, mode=mode)}")


def by_decay(args: argparse.Namespace, *, lr: float) -> dict[str, Recipe]:
    """SGD with momentum 0.9, FF's linear schedule and each weight decay of the papers."""
    common: dict[str, Any] = {"seed": args.seed, "epochs": args.epochs, "batch_size": 128}
    return {
        f"weight decay {decay:g}": Recipe(
            **common, lr=lr, momentum=0.9, weight_decay=decay, schedule="linear"
        )
        for decay in DECAYS
    }
