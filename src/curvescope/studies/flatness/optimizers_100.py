"""FF §5, fig. 8 and 10: SGD against Gadam on CIFAR-100, spectra and the course of the accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.networks import network
from curvescope.operators.hessian import Hessian
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.optimizers import recipes
from curvescope.studies.flatness.ritz import Ritz, panel, ritz
from curvescope.studies.flatness.solutions import Splits
from curvescope.training import Fit, Trained, train

KEY = "flatness-optimizers-100"
EPOCHS = {"smoke": 6, "small": 30, "paper": 40}
DECAYS = (5e-4, 0.25)
"""FF's weight decay of SGD and decoupled one of Gadam on CIFAR-100."""
MEAN_SQUARE = {"train": (0.0001, 0.02), "eval": (1.3e-5, 0.04)}
"""FF's tr H² / P for SGD and Gadam, by the mode of the batch norms."""
LARGEST = {"train": 40.0, "eval": 35.0}
"""FF: so many times larger is the spectral norm of Gadam's solution."""
FITTED = {"SGD": 99.64, "Gadam": 99.81}
"""FF's training accuracies, in per cent."""
MODES = ("train", "eval")
BATCH = 128


@dataclass(frozen=True)
class Found:
    """A training with the spectra of its solution in both modes."""

    trained: Trained
    train: Fit
    test: Fit
    spectra: Mapping[str, Ritz]


def run(settings: Settings) -> Outcome:
    """Train with both, compute the spectra in both modes, compare."""
    name = settings.pick(smoke="F-16-BN", small="VGG11-W32-BN", paper="VGG16-BN")
    data = _data(settings)
    epochs = settings.pick(**EPOCHS)
    size = settings.pick(smoke=64, small=64, paper=BATCH)
    made = recipes(epochs, decays=DECAYS, batch_size=size)
    found = {}
    for which, recipe in made.items():
        settings.tell(f"{name}, {which}: training for {epochs} epochs")
        model = _model(settings, name, data)
        folder = settings.work / "training" / f"{KEY}-{which}-{settings.scale}"
        ended = train(model, data[0], recipe, test=data[1], folder=folder, resume=True)
        assert ended.train is not None, "FF's learning rates do not diverge"
        assert ended.test is not None, "there is held-out data"
        spectra = {mode: _spectrum(settings, model, which, data, mode) for mode in MODES}
        found[which] = Found(ended, ended.train, ended.test, spectra)
    numbers = {which: _numbers(f) for which, f in found.items()}
    notes = (*_notes(settings, name, data, epochs), _fits(found))
    return Outcome(solutions.beside(settings, _rows(found)), _pictures(found), numbers, notes)


def _data(settings: Settings) -> Splits:
    """CIFAR-100 at paper scale, its first twenty classes at ``small``."""
    if settings.scale == "smoke":
        return solutions.digits(settings, 384, 256)
    whole = solutions.hundred(settings, 40, 10)
    if settings.scale == "paper":
        return whole
    first, second = (replace(solutions.part(split, split.y < 20), classes=20) for split in whole)
    return first, second


def _model(settings: Settings, name: str, data: Splits) -> nn.Module:
    g = torch.Generator().manual_seed(settings.seed)
    model = network(name, data[0].input_shape, data[0].classes, generator=g)
    return model.to(settings.device)


def _spectrum(settings: Settings, model: nn.Module, which: str, data: Splits, mode: str) -> Ritz:
    settings.tell(f"{which}, {mode} mode: spectrum")
    few = solutions.problem(model, data[0], samples=_samples(settings), size=BATCH, mode=mode)
    steps = settings.pick(smoke=10, small=40, paper=100)
    return ritz(settings, f"{KEY}-spectrum-{which}-{mode}", Hessian(few), steps=steps)


def _samples(settings: Settings) -> int:
    return settings.pick(smoke=128, small=256, paper=512)


def _numbers(found: Found) -> dict[str, Any]:
    return {
        "train": asdict(found.train),
        "test": asdict(found.test),
        "test accuracy by epoch": [epoch.test_accuracy for epoch in found.trained.history],
        "spectra": {
            mode: {"values": h.values.tolist(), "masses": h.masses.tolist()}
            for mode, h in found.spectra.items()
        },
    }


def _rows(found: Mapping[str, Found]) -> list[Row]:
    rows = []
    for mode in MODES:
        pair = {which: f.spectra[mode] for which, f in found.items()}
        for (which, h), printed in zip(pair.items(), MEAN_SQUARE[mode], strict=True):
            rows += [
                Row(f"λ_max, {which}, {mode} mode", h.largest),
                Row(f"tr H² / P, {which}, {mode} mode", h.moment(2), paper=printed),
            ]
        sgd, gadam = pair["SGD"], pair["Gadam"]
        rows += [
            Row(
                f"λ_max of Gadam over that of SGD, {mode} mode",
                gadam.largest / sgd.largest,
                paper=LARGEST[mode],
                low=1.0,
            ),
            Row(
                f"tr H² / P of Gadam over that of SGD, {mode} mode",
                gadam.moment(2) / sgd.moment(2),
                paper=MEAN_SQUARE[mode][1] / MEAN_SQUARE[mode][0],
                low=1.0,
            ),
        ]
    for which, f in found.items():
        rows += [
            Row(
                f"training accuracy, {which}, per cent",
                100 * f.train.accuracy,
                paper=FITTED[which],
            ),
            Row(f"test accuracy, {which}, per cent", 100 * f.test.accuracy),
        ]
    better = 100 * (found["Gadam"].test.accuracy - found["SGD"].test.accuracy)
    rows.append(Row("test accuracy: Gadam less SGD, points", better, low=0.0))
    return rows


def _pictures(found: Mapping[str, Found]) -> tuple[Picture, ...]:
    spectra = tuple(
        panel(f"batch norms in {mode} mode", {which: f.spectra[mode] for which, f in found.items()})
        for mode in MODES
    )
    course = Panel(
        xlabel="epoch",
        ylabel="test accuracy, per cent",
        curves=tuple(
            Curve.of(
                which,
                [epoch.epoch for epoch in f.trained.history],
                [100 * (epoch.test_accuracy or 0.0) for epoch in f.trained.history],
                color=i,
            )
            for i, (which, f) in enumerate(found.items())
        )
        + tuple(
            Curve.of(
                f"{which}, result",
                [f.trained.recipe.epochs],
                [100 * f.test.accuracy],
                kind="points",
                color=i,
            )
            for i, (which, f) in enumerate(found.items())
        ),
    )
    return (
        Picture(
            "spectra",
            "Ritz values of the Hessian and their masses (FF fig. 8a, 8b and 10).",
            spectra,
        ),
        Picture(
            "accuracy",
            "Test accuracy along training (FF fig. 8c); Gadam's result is the average of its "
            "weights over the last two fifths.",
            (course,),
            columns=1,
        ),
    )


def _fits(found: Mapping[str, Found]) -> str:
    losses = ", ".join(f"{which} {f.train.loss:.2g}" for which, f in found.items())
    return f"Training losses: {losses}; FF's solutions both fit the training data."


def _notes(settings: Settings, name: str, data: Splits, epochs: int) -> tuple[str, ...]:
    on = "embedded digits" if settings.scale == "smoke" else "CIFAR-100"
    return (
        f"{name} on {len(data[0]):,} samples of {data[0].classes} classes of {on}, tested on "
        f"{len(data[1]):,}, {epochs} epochs, no augmentation; FF: VGG16-BN on all of CIFAR-100, "
        "300 epochs. SGD with learning rate 0.1 and weight decay 5e-4, Gadam with 5e-4 and "
        "decoupled weight decay 0.25.",
        f"On {len(data[1]):,} test images an accuracy of a quarter is uncertain by "
        f"{100 * (0.1875 / len(data[1])) ** 0.5:.1f} points.",
        f"Curvature on {_samples(settings)} training samples, in train mode in batches of {BATCH}; "
        "one random vector, as FF, but a converged Ritz value counts as one eigenvalue.",
    )


ENTRY = Entry(
    name="flatness/optimizers-100",
    source="FF §5: fig. 8, 10",
    shows="On CIFAR-100 Gadam's solution is sharper than SGD's in both modes of the batch norms, "
    "and generalizes better.",
    cost={
        "smoke": "3 s, 384 embedded digits",
        "small": "4 minutes, 800 images of CIFAR-100, a narrow VGG11",
        "paper": "VGG16-BN, 4,000 images of CIFAR-100, 40 epochs: 60 s on an H200",
    },
    run=run,
    subject={
        "smoke": "F-16-BN on embedded digits",
        "small": "VGG11-W32-BN on 20 classes of cifar-100",
        "paper": "VGG16-BN on cifar-100",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": "a VGG11 32 channels wide instead of VGG-16, 800 images of 20 classes instead of "
        f"50,000 of 100, {EPOCHS['small']} epochs instead of 300, no augmentation; curvature of "
        "256 images, 40 Lanczos steps instead of 100",
        "paper": f"4,000 images instead of 50,000, {EPOCHS['paper']} epochs instead of 300, no "
        "augmentation; curvature of 512 images",
    },
)
