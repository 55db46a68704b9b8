"""FF §3.2 and app. D: the mass of the spectrum at zero along training, beside the rank bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from curvescope._state import evaluated
from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import DegeneracyHistory, rank_history
from curvescope.networks import network
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.ritz import panel, ritz
from curvescope.training import Recipe, load_weights, train

EPOCHS = {"smoke": 4, "small": 12, "paper": 12}
SAMPLES = {"smoke": 400, "small": 5000, "paper": 10_240}
PREDICTED = 0.9639
"""FF: at least this share at zero, for VGG-16 on CIFAR-10 with 1.6 · 10⁷ parameters."""


@dataclass(frozen=True)
class Plan:
    """A network to train, with checkpoints, and how to measure at each of them."""

    key: str
    network: str
    data: Dataset
    recipe: Recipe
    samples: int
    steps: int

    def problems(self, settings: Settings, mode: str) -> Iterator[tuple[int, Problem]]:
        """The problem at each point of the training: before it, and at the checkpoints."""
        g = torch.Generator().manual_seed(settings.seed)
        model = network(self.network, self.data.input_shape, self.data.classes, generator=g)
        model = model.to(settings.device)
        folder = settings.work / "training" / f"{self.key}-{self.network}-{settings.scale}"
        settings.tell(f"{self.network}: training for {self.recipe.epochs} epochs")
        train(model, self.data, self.recipe, folder=folder, resume=True)
        for epoch in (0, *self.recipe.checkpoints):
            settings.tell(f"{self.network}, {mode} mode: spectra after epoch {epoch}")
            file = "initial" if epoch == 0 else f"epoch-{epoch:05d}"
            load_weights(folder / "weights" / f"{file}.safetensors", model)
            few = solutions.problem(
                evaluated(model), self.data, samples=self.samples, size=128, mode=mode
            )
            yield epoch, few

    def history(self, settings: Settings, mode: str) -> DegeneracyHistory:
        """The mass at zero at each point."""
        generator = settings.generator()
        return rank_history(self.problems(settings, mode), steps=self.steps, generator=generator)


def plain(settings: Settings) -> Plan:
    """FF's VGG-16, or what stands for it."""
    samples = settings.pick(**SAMPLES)
    return Plan(
        "flatness-degeneracy",
        settings.pick(smoke="F-20^2", small="LeNet5", paper="VGG16"),
        solutions.photographs(settings, samples, 100)[0],
        recipe_with_checkpoints(settings, settings.pick(**EPOCHS)),
        settings.pick(smoke=100, small=500, paper=512),
        settings.pick(smoke=30, small=100, paper=100),
    )


def recipe_with_checkpoints(settings: Settings, epochs: int) -> Recipe:
    """SGD with momentum; weights kept after a quarter, half and all of the epochs."""
    kept = tuple(sorted({max(1, epochs // 4), epochs // 2, epochs}))
    return Recipe(seed=settings.seed, epochs=epochs, lr=0.05, momentum=0.9, checkpoints=kept)


def run(settings: Settings) -> Outcome:
    """Train with checkpoints, measure at each of them."""
    plan = plain(settings)
    history = plan.history(settings, "eval")
    spectra = {
        f"epoch {epoch}": ritz(settings, f"{plan.key}-{epoch}", Hessian(few), steps=plan.steps)
        for epoch, few in plan.problems(settings, "eval")
        if epoch >= plan.recipe.epochs // 2
    }
    data, curvature = plan.data, plan.samples
    notes = (
        f"{plan.network}, {history.parameters:,} parameters, {len(data):,} samples, "
        f"{plan.recipe.epochs} epochs; "
        f"curvature on {curvature} of them. FF's bound 4 d_y (Σ N_l + d_x) is "
        f"{history.bound:,} here, so that it puts at least {history.predicted:.4f} at zero"
        + (": nothing, for so small a network." if history.predicted <= 0 else "."),
        f"G of {curvature} samples has at most {curvature * (data.classes - 1):,} eigenvalues that "
        f"are not zero, whatever the network: {_by_samples(history, curvature, data):.4f} or more "
        "at zero. For VGG-16 on all of CIFAR-10 that bound, 450,000, is below FF's 577,600.",
        "The mass of H's two nearest Ritz values, as FF take them where the mass at zero splits; "
        "of G the nearest alone.",
        "FF's fig. 1a is a sketch of a network.",
    )
    drawn = Picture(
        "spectra",
        "Ritz values of the Hessian and their masses at two epochs (FF fig. 1b, 1c).",
        tuple(panel(title, {"": spectrum}) for title, spectrum in spectra.items()),
    )
    return Outcome(_rows(history), (_picture(history), drawn), asdict(history), notes)


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
    points = history.points
    masses = [
        Curve.of("G, nearest", epochs, [p.gauss_newton.nearest.value for p in points], color=0),
        Curve.of("H, nearest", epochs, [p.hessian.nearest.value for p in points], color=1),
        Curve.of("H, two nearest", epochs, [p.hessian.pair.value for p in points], color=2),
    ]
    if history.predicted > 0:  # else it is no bound
        bound = [history.predicted for _ in epochs]
        masses.append(Curve.of("FF's rank bound, at least", epochs, bound, color=3))
    mass = Panel(xlabel="epoch", ylabel="mass at zero", curves=tuple(masses))
    nearest = [abs(p.gauss_newton.nearest_value) for p in points]
    pair = [abs(p.hessian.pair_value) for p in points]
    place = Panel(
        xlabel="epoch",
        ylabel="|Ritz value| where it sits",
        curves=(
            Curve.of("G, nearest", epochs, nearest, color=0),
            Curve.of("H, two nearest", epochs, pair, color=2),
        ),
        yscale="log",
    )
    return Picture(
        "degeneracy",
        "Mass of the Ritz values nearest zero along training, and where they lie (FF fig. 1, 12).",
        (mass, place),
    )


def _checks(outcome: Outcome) -> Iterator[Row]:
    """FF app. D.1: the degeneracy is extremely high; that of G sits nearer to zero than H's."""
    masses = {name: outcome.values(f"mass of {name}") for name in ("G", "H")}
    for name, found in masses.items():
        yield Row(
            f"mass of {name} at zero, least of all epochs",
            min(found),
            paper=PREDICTED,
            low=0.5,
            note="“rank degeneracy is extremely high”: most of the spectrum; range ours",
        )
    points = outcome.numbers["points"]
    ratios = [
        abs(p["gauss_newton"]["nearest_value"]) / max(abs(p["hessian"]["pair_value"]), 1e-30)
        for p in points
    ]
    yield Row(
        "|Ritz value| at zero, that of G over that of H, largest of all epochs",
        max(ratios),
        high=1.0,
        note="of H “we do not get as close to the GPU precision threshold”",
    )


ENTRY = Entry(
    name="flatness/degeneracy",
    source="FF §3.2, app. D: fig. 1b, 1c, 1d, 11 (VGG), 12",
    shows="Most of the spectrum sits at zero throughout training, more than the rank bound says.",
    cost={
        "smoke": "3 s, embedded digits",
        "small": "5 minutes, 5,000 samples of CIFAR-10, LeNet5",
        "paper": "VGG16, 10,240 samples of CIFAR-10, 12 epochs: 60 s on an H200",
    },
    run=run,
    subject={
        "smoke": "F-20^2 on embedded digits",
        "small": "LeNet5 on cifar-10",
        "paper": "VGG16 on cifar-10",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": f"LeNet5 instead of VGG-16, {SAMPLES['small']:,} images of CIFAR-10 instead of "
        f"50,000 of CIFAR-10 (fig. 1) and CIFAR-100 (fig. 11, 12), {EPOCHS['small']} epochs "
        "instead of 300 and 225; curvature of 500 images",
        "paper": f"{SAMPLES['paper']:,} images of CIFAR-10 instead of 50,000 of CIFAR-10 (fig. 1) "
        f"and CIFAR-100 (fig. 11, 12), {EPOCHS['paper']} epochs instead of 300 and 225; curvature "
        "of 512 images",
    },
    checks=_checks,
)
