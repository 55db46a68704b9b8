"""The trainings that DH builds on: F-200² on MNIST and LeNet5 on CIFAR-10, five seeds each.

Schedule of DH D.3: SGD without momentum and weight decay, batches of 128, learning rate 0.01, 1000
epochs. Inputs are normalised by channel (DH E.1: mean-zero inputs), weights start as PyTorch's.
Five networks are trained side by side. On an H200 this takes minutes; elsewhere use fewer epochs.

    python reproductions/training/reproduce.py --root DATA --out reproductions/training

writes ``numbers.json`` (all curves and the final figures), ``curves.png`` and ``.svg``
and one file of final weights for each experiment, and prints the table. Unfinished runs are kept in
``--work`` and continued by the same command.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import matplotlib
import matplotlib.pyplot as plt
import torch

from curvescope import io
from curvescope.data import dataset
from curvescope.networks import network
from curvescope.training import Progress, Recipe, Trained, train_many

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "curvescope"  # the same picture, the same file

BLUE, RED = "#4C78A8", "#D62728"


@dataclass(frozen=True)
class Experiment:
    """A network on a data set, and what the issue asks of it."""

    key: str
    network: str
    data: str
    least_train: float  # accuracy
    least_test: float


EXPERIMENTS = (
    Experiment("mnist", "F-200^2", "mnist", 1.0, 0.975),
    Experiment("cifar-10", "LeNet5", "cifar-10", 0.99, 0.58),
)


class Printer:
    """Prints where the training is, every few seconds."""

    def __init__(self, name: str, seconds: float = 5.0) -> None:
        self._name, self._seconds = name, seconds
        self._started = self._last = time.perf_counter()
        self._first: int | None = None

    def __call__(self, progress: Progress) -> None:
        """Receive the progress after a stretch of steps."""
        if self._first is None:
            self._first = progress.done
        now = time.perf_counter()
        epochs = [epoch for epoch in progress.epochs if epoch is not None]
        if now - self._last < self._seconds or not epochs:
            return
        self._last = now
        left = (progress.total - progress.done) / max(progress.done - self._first, 1)
        train, test = (
            [getattr(epoch, f) for epoch in epochs] for f in ("accuracy", "test_accuracy")
        )
        print(
            f"{self._name}: epoch {epochs[0].epoch}, loss {median(e.loss for e in epochs):.5f}, "
            f"train {min(train):.4f}–{max(train):.4f}, test {min(test):.4f}–{max(test):.4f}, "
            f"{epochs[0].seconds * 1e3:.0f} ms an epoch, {left * (now - self._started):.0f} s left",
            flush=True,
        )


def reproduce(
    experiment: Experiment, *, root: Path | None, epochs: int, seeds: int, work: Path, device: str
) -> tuple[list[Trained], dict[str, torch.Tensor]]:
    """Train all seeds side by side; return the results and the final weights."""
    train = dataset(experiment.data, root=root, normalise="channel", device=device)
    test = dataset(experiment.data, root=root, split="test", normalise="channel", device=device)
    models, recipes, folders = [], [], []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        model = network(experiment.network, train.input_shape, train.classes, generator=generator)
        models.append(model.to(device))
        recipes.append(Recipe(seed=seed, epochs=epochs, lr=0.01, batch_size=128))
        folders.append(work / f"{experiment.key}-{epochs}-seed{seed}")
    started = time.perf_counter()
    results = train_many(
        models,
        train,
        recipes,
        test=test,
        folders=folders,
        resume=True,
        tell=Printer(f"{experiment.network} on {experiment.data}"),
    )
    print(f"{experiment.key}: {time.perf_counter() - started:.1f} s", flush=True)
    weights = {}
    for seed, folder in enumerate(folders):
        file = folder / "weights" / "final.safetensors"
        if file.exists():  # a run that diverged has no final weights
            tensors, _ = io.read_tensors(file)
            weights |= {f"seed{seed}.{key}": tensor for key, tensor in tensors.items()}
    return list(results), weights


def numbers(experiment: Experiment, results: Sequence[Trained]) -> dict[str, object]:
    """The figures of an experiment, and whether they are what was asked for."""
    pace = median(epoch.seconds for epoch in results[0].history)
    return {
        **asdict(experiment),
        "recipe": asdict(results[0].recipe),
        "seconds_per_epoch_of_all_seeds": pace,
        "seeds": [
            {"train": result.train, "test": result.test, "diverged": result.diverged}
            for result in results
        ],
        "reached": all(
            result.train is not None
            and result.test is not None
            and result.train.accuracy >= experiment.least_train
            and result.test.accuracy >= experiment.least_test
            for result in results
        ),
        "curves": [
            {
                key: [round(getattr(epoch, key), 7) for epoch in _thinned(result)]
                for key in ("epoch", "loss", "accuracy", "test_loss", "test_accuracy")
            }
            for result in results
        ],
    }


def _thinned(result: Trained) -> list:
    """Every epoch at first, later every tenth."""
    last = len(result.history)
    return [e for e in result.history if e.epoch <= 20 or e.epoch % 10 == 0 or e.epoch == last]


def draw(outcomes: dict[str, list[Trained]], out: Path) -> None:
    """Loss and error against epochs, one line for each seed."""
    figure, axes = plt.subplots(2, len(outcomes), figsize=(5 * len(outcomes), 6), squeeze=False)
    for column, (name, results) in enumerate(outcomes.items()):
        for result in results:
            epochs = [epoch.epoch for epoch in result.history]
            for row, (ours, tests) in enumerate(
                (
                    ([e.loss for e in result.history], [e.test_loss for e in result.history]),
                    (
                        [1 - e.accuracy for e in result.history],
                        [1 - (e.test_accuracy or 0) for e in result.history],
                    ),
                )
            ):
                axes[row][column].plot(epochs, ours, color=BLUE, lw=0.8, alpha=0.8)
                axes[row][column].plot(epochs, tests, color=RED, lw=0.8, alpha=0.8)
        axes[0][column].set(title=name, yscale="log", xscale="log", ylabel="mean loss")
        axes[1][column].set(xscale="log", ylabel="error", xlabel="epoch")
        axes[1][column].set_yscale("symlog", linthresh=1e-4)  # zero has a place
        axes[1][column].set_ylim(-2e-5, 1)
        axes[0][column].plot([], [], color=BLUE, label="training, during the epoch")
        axes[0][column].plot([], [], color=RED, label="test, after the epoch")
        axes[0][column].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out / "curves.png", dpi=150)
    figure.savefig(out / "curves.svg", metadata={"Date": None})


def table(outcomes: dict[str, list[Trained]]) -> str:
    """The final figures as a table in Markdown."""
    lines = [
        "| network, data | seed | training loss | wrong on training data | test accuracy |",
        "|---|---|---|---|---|",
    ]
    for name, results in outcomes.items():
        samples = 60_000 if "mnist" in name else 50_000
        for result in results:
            if result.train is None or result.test is None:
                lines.append(f"| {name} | {result.recipe.seed} | diverged | | |")
                continue
            wrong = round((1 - result.train.accuracy) * samples)
            lines.append(
                f"| {name} | {result.recipe.seed} | {result.train.loss:.2e} "
                f"| {wrong} of {samples:,} | {result.test.accuracy:.2%} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the experiments that were asked for and write what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, help="the folder with the data files")
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--work", type=Path, help="where unfinished runs are kept")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=[experiment.key for experiment in EXPERIMENTS])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    work = options.work or Path(tempfile.gettempdir()) / "curvescope-training"
    outcomes: dict[str, list[Trained]] = {}
    figures = {}
    for experiment in EXPERIMENTS:
        if options.only not in (None, experiment.key):
            continue
        results, weights = reproduce(
            experiment,
            root=options.root,
            epochs=options.epochs,
            seeds=options.seeds,
            work=work,
            device=options.device,
        )
        outcomes[f"{experiment.network} on {experiment.data}"] = results
        figures[experiment.key] = numbers(experiment, results)
        metadata = {"network": experiment.network, "data": experiment.data}
        io.write_tensors(options.out / f"{experiment.key}.safetensors", weights, metadata)
        io.write_json(options.out / "numbers.json", figures)
        print("reached" if figures[experiment.key]["reached"] else "NOT reached", flush=True)
    draw(outcomes, options.out)
    print(table(outcomes), flush=True)


if __name__ == "__main__":
    main()
