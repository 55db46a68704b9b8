"""FF §4: weight decay and sharpness of convolutional networks, batch norms in both modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curvescope.figures.model import Picture
from curvescope.flatness import SharpnessReport
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.solutions import DECAYS, Solution, Splits

BATCH = 128
"""Samples of a batch norm's batch, in training and in train mode."""
KEY = "flatness-batch-norm"
EPOCHS = {"smoke": 5, "small": 20, "paper": 30}
SAMPLES = {"smoke": (384, 256), "small": (2048, 1000), "paper": (10_240, 10_000)}
"""To train on and held out."""
_RATIOS = {"train": (30.0, 1e-4 / 2.3e-7), "eval": (1000.0, 4.9e-5 / 9.8e-12)}
"""FF for WideResNet-28x10 on CIFAR-100: λ_max and tr H² / P, regularized over unregularized."""


def subject(settings: Settings) -> tuple[str, Splits, list[Solution]]:
    """The network's name, its data, and the solutions for each weight decay."""
    network = settings.pick(smoke="F-16-BN", small="VGG11-W16-BN", paper="VGG16-BN")
    sizes = settings.pick(**SAMPLES)
    data = solutions.photographs(settings, *sizes)
    recipes = solutions.by_decay(epochs=_epochs(settings), lr=0.05, batch_size=BATCH)
    return network, data, solutions.solve(settings, KEY, network, data[0], recipes)


def _epochs(settings: Settings) -> int:
    return settings.pick(**EPOCHS)


def run(settings: Settings) -> Outcome:
    """Train with each weight decay, measure in both modes, compare."""
    network, data, found = subject(settings)
    curvature = settings.pick(smoke=256, small=512, paper=512)
    options: dict[str, Any] = {
        "samples": curvature,
        "size": BATCH,
        "tol": 1e-2,
        "probes": 8,
        "steps": settings.pick(smoke=4, small=8, paper=8),
    }
    by_mode = {
        mode: {
            s.name: solutions.report(settings, KEY, s, data, mode=mode, **options) for s in found
        }
        for mode in ("train", "eval")
    }
    rows = [row for mode, reports in by_mode.items() for row in _rows(mode, reports)]
    first, last = (solutions.accuracy(list(by_mode["eval"].values())[i]) for i in (0, -1))
    rows.append(Row("test accuracy: last less first, points", last - first, paper=5.4, low=0.0))
    numbers = {mode: solutions.saved(reports) for mode, reports in by_mode.items()}
    said = [s for mode, reports in by_mode.items() for s in solutions.findings(reports, mode=mode)]
    losses = ", ".join(f"{r.train.loss.value:.2g}" for r in by_mode["eval"].values())
    notes = (
        *_notes(settings, network, len(data[0]), curvature),
        f"Training losses in eval mode: {losses}. FF's argument is for losses near zero, which "
        "weights without decay reach by growing; far from it no order is predicted.",
        *said,
    )
    return Outcome(solutions.beside(settings, rows), (_picture(by_mode),), numbers, notes)


def _rows(mode: str, reports: Mapping[str, SharpnessReport]) -> list[Row]:
    found, rows = list(reports.values()), []
    for decay, r in zip(DECAYS, found, strict=True):
        where = f"{mode} mode, weight decay {decay:g}"
        rows += [
            Row(f"λ_max, {where}", r.hessian.largest.value),
            Row(f"tr H² / P, {where}", r.hessian.mean_square.value),
        ]
    rows += [
        Row(f"training loss, {mode} mode, weight decay {decay:g}", r.train.loss.value)
        for decay, r in zip(DECAYS, found, strict=True)
        if mode == "eval"
    ]
    for what, printed, pair in (
        ("λ_max", _RATIOS[mode][0], [found[i].hessian.largest.value for i in (0, -1)]),
        ("tr H² / P", _RATIOS[mode][1], [found[i].hessian.mean_square.value for i in (0, -1)]),
    ):
        ratio = pair[1] / max(pair[0], 1e-30)
        rows.append(Row(f"{what}, {mode} mode: last over first", ratio, paper=printed, low=1.0))
    return rows


def _picture(by_mode: Mapping[str, Mapping[str, SharpnessReport]]) -> Picture:
    def curves(pick: Any) -> dict[str, list[float]]:
        return {
            f"{mode} mode": [pick(r) for r in reports.values()] for mode, reports in by_mode.items()
        }

    return solutions.sides(
        "modes",
        "λ_max and the mean square of the eigenvalues against weight decay in both modes of the "
        "batch norms, with test accuracy and weight norm.",
        DECAYS,
        {
            "λ_max": curves(lambda r: r.hessian.largest.value),
            "tr H² / P": curves(lambda r: r.hessian.mean_square.value),
            "test accuracy, per cent": {
                "": [solutions.accuracy(r) for r in by_mode["eval"].values()]
            },
            "‖w‖": {"": [r.weights.norm for r in by_mode["eval"].values()]},
        },
    )


def _notes(settings: Settings, network: str, samples: int, curvature: int) -> tuple[str, ...]:
    data = "embedded digits" if settings.scale == "smoke" else "CIFAR-10"
    return (
        f"{network} on {samples:,} samples of {data}, {_epochs(settings)} epochs, learning rate "
        "0.05, no augmentation. FF take WideResNet-28x10 on CIFAR-100 and 300 epochs; their ratios "
        "stand in the column of the paper.",
        f"Curvature on {curvature:,} training samples, in train mode in batches of {BATCH}.",
    )


ENTRY = Entry(
    name="flatness/batch-norm",
    source="FF §4: fig. 6 (VGG), 7 (VGG)",
    shows="Weight decay makes a network with batch norm sharper and better; in eval mode, the mode "
    "in which it predicts, by far more than in train mode.",
    cost={
        "smoke": "5 s, 384 embedded digits",
        "small": "5 minutes, 2,048 samples of CIFAR-10, a narrow VGG11",
        "paper": "VGG16-BN, 10,240 samples of CIFAR-10, 30 epochs: 90 s on an H200",
    },
    run=run,
    subject={
        "smoke": "F-16-BN on embedded digits",
        "small": "VGG11-W16-BN on cifar-10",
        "paper": "VGG16-BN on cifar-10",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": "a VGG11 16 channels wide instead of WideResNet-28x10, "
        f"{SAMPLES['small'][0]:,} images of CIFAR-10 instead of 50,000 of CIFAR-100, "
        f"{EPOCHS['small']} epochs instead of 300, no augmentation; curvature of 512 images",
        "paper": "VGG16-BN instead of WideResNet-28x10 (that is flatness/wide-resnet), "
        f"{SAMPLES['paper'][0]:,} images of CIFAR-10 instead of 50,000 of CIFAR-100, "
        f"{EPOCHS['paper']} epochs instead of 300, no augmentation; curvature of 512 images",
    },
)
