"""FF §5, fig. 9: SGD against Gadam. The sharper solution generalizes better."""

from __future__ import annotations

from typing import Any

from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import SharpnessReport
from curvescope.operators.hessian import Hessian
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.ritz import Ritz, panel, ritz
from curvescope.studies.flatness.solutions import Solution
from curvescope.training import Recipe

PRINTED = {"train": (1.43e-5, 1.55e-3), "eval": (7.7e-7, 0.012)}
"""FF's tr H² / P on CIFAR-10 for SGD and Gadam, by the mode of the batch norms."""
MODES = ("train", "eval")
EPOCHS = {"smoke": 6, "small": 150, "paper": 150}
SAMPLES = {"smoke": (384, 256), "small": (10_240, 10_000), "paper": (10_240, 10_000)}
"""To train on and held out."""
BATCH = 128


def run(settings: Settings) -> Outcome:
    """Train with both, measure in both modes, compare."""
    network = settings.pick(smoke="F-16-BN", small="VGG16-W16-BN", paper="VGG16-BN")
    sizes = settings.pick(**SAMPLES)
    data = solutions.photographs(settings, *sizes)
    epochs = settings.pick(**EPOCHS)
    names = recipes(epochs)
    found = solutions.solve(settings, "flatness-optimizers", network, data[0], names)
    curvature = settings.pick(smoke=256, small=512, paper=512)
    steps = settings.pick(smoke=4, small=8, paper=8)
    options: dict[str, Any] = {
        "samples": curvature,
        "size": BATCH,
        "tol": 1e-2,
        "probes": 8,
        "steps": steps,
    }
    reports = {
        (s.name, mode): solutions.report(
            settings, "flatness-optimizers", s, data, mode=mode, **options
        )
        for s in found
        for mode in MODES
    }
    spectra = {
        (s.name, mode): _spectrum(settings, s, data[0], mode) for mode in MODES for s in found
    }
    drawn = Picture(
        "spectra",
        "Ritz values of the Hessian and their masses (FF fig. 9).",
        tuple(
            panel(f"batch norms in {mode} mode", {s.name: spectra[s.name, mode] for s in found})
            for mode in MODES
        ),
    )
    numbers = solutions.saved({f"{name}, {mode}": r for (name, mode), r in reports.items()})
    losses = [f"{reports[name, 'eval'].train.loss.value:.2g}" for name in names]
    notes = (
        *_notes(settings, network, sizes, epochs, curvature),
        f"Training losses in eval mode: SGD {losses[0]}, Gadam {losses[1]}; FF's solutions both "
        "fit the training data.",
    )
    pictures = (_picture(reports), drawn)
    return Outcome(solutions.beside(settings, _rows(reports)), pictures, numbers, notes)


def _spectrum(settings: Settings, solution: Solution, data: Dataset, mode: str) -> Ritz:
    settings.tell(f"{solution.name}, {mode} mode: spectrum")
    samples = settings.pick(smoke=128, small=256, paper=512)
    few = solutions.problem(solution.model, data, samples=samples, size=BATCH, mode=mode)
    steps = settings.pick(smoke=10, small=40, paper=100)
    key = f"flatness-optimizers-spectrum-{solution.name}-{mode}"
    return ritz(settings, key, Hessian(few), steps=steps)


def recipes(
    epochs: int, *, decays: tuple[float, float] = (3e-4, 0.35), batch_size: int = BATCH
) -> dict[str, Recipe]:
    """FF's settings, with the average over the last two fifths of the epochs.

    Args:
        epochs: Of both.
        decays: The weight decay of SGD and the decoupled one of Gadam; by default for CIFAR-10.
        batch_size: Of both.
    """
    common: dict[str, Any] = {"seed": 0, "epochs": epochs, "batch_size": batch_size}
    return {
        "SGD": Recipe(**common, lr=0.1, momentum=0.9, weight_decay=decays[0], schedule="linear"),
        "Gadam": Recipe(
            **common,
            optimizer="gadam",
            lr=5e-4,
            weight_decay=decays[1],
            schedule="averaging",
            average_from=max(1, 3 * epochs // 5),
        ),
    }


def _rows(reports: dict[tuple[str, str], SharpnessReport]) -> list[Row]:
    rows = []
    for mode in MODES:
        pair = [reports[name, mode] for name in ("SGD", "Gadam")]
        for name, r, printed in zip(("SGD", "Gadam"), pair, PRINTED[mode], strict=True):
            rows += [
                Row(f"tr H² / P, {name}, {mode} mode", r.hessian.mean_square.value, paper=printed),
                Row(f"λ_max, {name}, {mode} mode", r.hessian.largest.value),
            ]
        squares = [r.hessian.mean_square.value for r in pair]
        rows.append(
            Row(
                f"tr H² / P of Gadam over that of SGD, {mode} mode",
                squares[1] / squares[0],
                paper=PRINTED[mode][1] / PRINTED[mode][0],
                low=1.0,
            )
        )
    right = {name: solutions.accuracy(reports[name, "eval"]) for name in ("SGD", "Gadam")}
    rows += [Row(f"test accuracy, {name}, per cent", value) for name, value in right.items()]
    better = right["Gadam"] - right["SGD"]
    rows.append(Row("test accuracy: Gadam less SGD, points", better, low=0.0))
    return rows


def _picture(reports: dict[tuple[str, str], SharpnessReport]) -> Picture:
    def side(title: str, pick: Any) -> Panel:
        curves = tuple(
            Curve.of(
                f"{name}, {mode} mode",
                [pick(r)],
                [100 - solutions.accuracy(reports[name, "eval"])],
                kind="points",
            )
            for (name, mode), r in reports.items()
        )
        return Panel(xlabel=title, ylabel="test error, per cent", curves=curves, xscale="log")

    return Picture(
        "sharpness-and-error",
        "Sharpness against test error for SGD and Gadam; FF find Gadam sharper and better.",
        (
            side("λ_max", lambda r: r.hessian.largest.value),
            side("tr H² / P", lambda r: r.hessian.mean_square.value),
        ),
    )


def _notes(
    settings: Settings, network: str, sizes: tuple[int, int], epochs: int, curvature: int
) -> tuple[str, ...]:
    data = "embedded digits" if settings.scale == "smoke" else "CIFAR-10"
    return (
        f"{network} on {sizes[0]:,} samples of {data}, {epochs} epochs, without augmentation; FF: "
        "VGG16-BN on all of CIFAR-10, 300 epochs. SGD with learning rate 0.1 and weight decay "
        "3e-4, Gadam with 5e-4 and decoupled weight decay 0.35, weights averaged over the last two "
        "fifths of the epochs.",
        f"Curvature on {curvature:,} training samples, in train mode in batches of {BATCH}.",
    )


ENTRY = Entry(
    name="flatness/optimizers",
    source="FF §5: fig. 9",
    shows="Gadam finds sharper solutions than SGD, and they generalize better.",
    cost={
        "smoke": "4 s, 384 embedded digits",
        "small": "VGG16 a quarter as wide, 10,240 samples of CIFAR-10, 150 epochs: 40 minutes",
        "paper": "VGG16-BN, 10,240 samples of CIFAR-10, 150 epochs: about 7 minutes on an H200",
    },
    run=run,
    subject={
        "smoke": "F-16-BN on embedded digits",
        "small": "VGG16-W16-BN on cifar-10",
        "paper": "VGG16-BN on cifar-10",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": f"a VGG16 a quarter as wide, {SAMPLES['small'][0]:,} images "
        f"instead of 50,000, {EPOCHS['small']} epochs instead of 300, no augmentation; curvature "
        "of 512 images",
        "paper": f"{SAMPLES['paper'][0]:,} images instead of 50,000, {EPOCHS['paper']} epochs "
        "instead of 300, no augmentation; curvature of 512 images",
    },
)
