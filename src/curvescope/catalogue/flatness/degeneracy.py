"""FF §3.2 and app. D: the mass of the spectrum at zero along training, beside the rank bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch

from curvescope.catalogue.entry import Entry, Outcome, Row, Settings
from curvescope.catalogue.flatness import solutions
from curvescope.catalogue.pictures import Curve, Panel, Picture
from curvescope.data import Dataset
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.sharpness import DegeneracyHistory, rank_history
from curvescope.training import Recipe, load_weights, train

PREDICTED = 0.9639
"""FF: at least this share at zero, for VGG-16 on CIFAR-10 with 1.6 · 10⁷ parameters."""


def run(settings: Settings) -> Outcome:
    """Train with checkpoints, measure at each of them."""
    name = settings.pick(smoke="F-20^2", small="LeNet5", paper="VGG16")
    samples = settings.pick(smoke=400, small=5000, paper=10_240)
    data, _ = solutions.photographs(settings, samples, 100)
    epochs = settings.pick(smoke=4, small=12, paper=12)
    kept = sorted({max(1, epochs // 4), epochs // 2, epochs})
    folder = settings.work / "training" / f"flatness-degeneracy-{name}-{settings.scale}"
    g = torch.Generator().manual_seed(settings.seed)
    model = network(name, data.input_shape, data.classes, generator=g).to(settings.device)
    recipe = Recipe(
        seed=settings.seed, epochs=epochs, lr=0.05, momentum=0.9, checkpoints=tuple(kept)
    )
    settings.tell(f"{name}: training for {epochs} epochs")
    train(model, data, recipe, folder=folder, resume=True)
    curvature = settings.pick(smoke=100, small=500, paper=512)

    def points() -> Iterator[tuple[float, Problem]]:
        for epoch in (0, *kept):
            settings.tell(f"{name}: spectra after epoch {epoch}")
            file = "initial" if epoch == 0 else f"epoch-{epoch:05d}"
            load_weights(folder / "weights" / f"{file}.safetensors", model)
            yield epoch, solutions.problem(model.eval(), data, samples=curvature, size=128)

    history = rank_history(
        points(),
        steps=settings.pick(smoke=30, small=100, paper=100),
        generator=settings.generator(),
    )
    notes = (
        f"{name}, {history.parameters:,} parameters, {samples:,} samples, {epochs} epochs; "
        f"curvature on {curvature} of them. FF's bound 4 d_y (Σ N_l + d_x) is "
        f"{history.bound:,} here, so that it puts at least {history.predicted:.4f} at zero"
        + (": nothing, for so small a network." if history.predicted <= 0 else "."),
        f"G of {curvature} samples has at most {curvature * (data.classes - 1):,} eigenvalues that "
        f"are not zero, whatever the network: {_by_samples(history, curvature, data):.4f} or more "
        "at zero. For VGG-16 on all of CIFAR-10 that bound, 450,000, is below FF's 577,600.",
        "The mass of H's two nearest Ritz values, as FF take them where the mass at zero splits; "
        "of G the nearest alone.",
    )
    return Outcome(_rows(history), (_picture(history),), asdict(history), notes)


def _by_samples(history: DegeneracyHistory, samples: int, data: Dataset) -> float:
    """The share at zero that the number of samples alone accounts for."""
    return 1 - samples * (data.classes - 1) / history.parameters


def _rows(history: DegeneracyHistory) -> tuple[Row, ...]:
    rows = [Row("share at zero by the rank bound", history.predicted, paper=PREDICTED)]
    low = history.predicted if history.predicted > 0 else None  # below 0 it says nothing
    for p in history.points:
        rows += [
            Row(
                f"mass of G nearest zero, epoch {p.epoch:g}", p.gauss_newton.nearest.value, low=low
            ),
            Row(f"mass of H, two nearest, epoch {p.epoch:g}", p.hessian.pair.value, low=low),
        ]
    return tuple(rows)


def _picture(history: DegeneracyHistory) -> Picture:
    epochs = [p.epoch for p in history.points]
    mass = Panel(
        title="mass at zero",
        xlabel="epoch",
        curves=(
            Curve.of("G, nearest", epochs, [p.gauss_newton.nearest.value for p in history.points]),
            Curve.of("H, nearest", epochs, [p.hessian.nearest.value for p in history.points]),
            Curve.of("H, two nearest", epochs, [p.hessian.pair.value for p in history.points]),
            Curve.of("rank bound", epochs, [max(history.predicted, 0.0) for _ in epochs]),
        ),
    )
    place = Panel(
        title="where it sits",
        xlabel="epoch",
        ylabel="|Ritz value|",
        curves=(
            Curve.of("G", epochs, [abs(p.gauss_newton.nearest_value) for p in history.points]),
            Curve.of("H, two nearest", epochs, [abs(p.hessian.pair_value) for p in history.points]),
        ),
        yscale="log",
    )
    return Picture(
        "degeneracy",
        "Mass of the Ritz values nearest zero along training, and where they lie (FF fig. 1, 12).",
        (mass, place),
    )


ENTRY = Entry(
    name="flatness/degeneracy",
    source="FF §3.2, fig. 1; app. D, fig. 11 and 12",
    shows="Most of the spectrum sits at zero throughout training, more than the rank bound says.",
    cost={
        "smoke": "3 s, embedded digits",
        "small": "5 minutes, 5,000 samples of CIFAR-10, LeNet5",
        "paper": "VGG16, 10,240 samples of CIFAR-10, 12 epochs: 60 s on an H200",
    },
    run=run,
)
