"""FF §4, PP §5: a network trained with several weight decays, and the spectra of its Hessian."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.hessian import Hessian
from curvescope.studies.entry import Outcome, Row, Scale, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.ritz import Ritz, panel, ritz
from curvescope.studies.flatness.solutions import DECAYS, Splits
from curvescope.training import Fit, evaluate

FASTER = 10
"""Weight decays are so many times FF's, because the trainings are a hundred times shorter."""
BATCH = 128
"""Samples of a batch norm's batch in train mode."""

Columns = tuple[float, float, float]


@dataclass(frozen=True)
class Printed:
    """PP's columns for weight decay 0, 1e-4 and 5e-4 (tables 2, 4, 5)."""

    error_gap: Columns
    loss_gap: Columns
    mean: Columns
    mean_square: Columns
    largest: Columns
    metric: Columns


@dataclass(frozen=True)
class Study:
    """A network of FF and PP, what stands for it at each scale, and what PP print."""

    name: str
    title: str
    networks: Mapping[Scale, str]
    rate: float
    epochs: Mapping[Scale, int]
    modes: tuple[str, ...]
    printed: Printed
    gain: float  # of validation accuracy by the largest weight decay, in points, FF or PP
    init: str = "pytorch"
    in_eval: tuple[float, float] | None = None  # FF's λ_max and tr H², last over first, eval mode


@dataclass(frozen=True)
class Measured:
    """A solution: its fit, its weights, and the spectrum of H in each mode of the batch norms."""

    decay: float
    train: Fit
    test: Fit
    squared_norm: float
    spectra: Mapping[str, Ritz]

    @property
    def metric(self) -> float:
        """PP's ``tr H + ½‖w‖²`` (eq. 7), batch norms in eval mode."""
        H = self.spectra["eval"]
        return H.dimension * H.moment(1) + self.squared_norm / 2

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "decay": self.decay,
            "train": vars(self.train),
            "test": vars(self.test),
            "norm": self.squared_norm**0.5,
            "spectra": {
                mode: {
                    "values": found.values.tolist(),
                    "masses": found.masses.tolist(),
                    "mean": found.moment(1),
                    "mean square": found.moment(2),
                }
                for mode, found in self.spectra.items()
            },
        }


# Measuring --------------------------------------------------------------------------------------


def data(settings: Settings, study: Study) -> Splits:
    """CIFAR-100 at paper scale, else fewer classes and coarser images."""
    if settings.scale == "paper":
        return solutions.hundred(settings, 20, 10)
    if settings.scale == "small":
        return solutions.smaller(solutions.photographs(settings, 640, 1000), 3)
    found = solutions.digits(settings, 192, 256)
    return found if study.networks["smoke"].startswith("LeNet") else solutions.smaller(found, 4)


def measured(settings: Settings, study: Study) -> list[Measured]:
    """The network trained with each weight decay, and the spectrum of its Hessian."""
    splits, network = data(settings, study), study.networks[settings.scale]
    recipes = {
        name: replace(recipe, weight_decay=FASTER * recipe.weight_decay)
        for name, recipe in solutions.by_decay(
            epochs=study.epochs[settings.scale], lr=study.rate, batch_size=_batch(settings)
        ).items()
    }
    key = f"flatness-{study.name}"
    found = []
    for decay, solution in zip(
        DECAYS,
        solutions.solve(settings, key, network, splits[0], recipes, init=study.init),
        strict=True,
    ):
        spectra = {}
        for mode in study.modes:
            settings.tell(f"{network}, {solution.name}, {mode} mode: spectrum")
            problem = solutions.problem(
                solution.model, splits[0], samples=_samples(settings), size=BATCH, mode=mode
            )
            kept = f"{key}-spectrum-{decay:g}-{mode}"
            spectra[mode] = ritz(settings, kept, Hessian(problem), steps=_steps(settings))
        norm = sum(float(p.detach().square().sum()) for p in solution.model.parameters())
        fits = [evaluate(solution.model, split) for split in splits]
        found.append(Measured(decay, fits[0], fits[1], norm, spectra))
    return found


def _samples(settings: Settings) -> int:
    return settings.pick(smoke=64, small=128, paper=256)


def _batch(settings: Settings) -> int:
    return settings.pick(smoke=64, small=32, paper=64)


def _steps(settings: Settings) -> int:
    return settings.pick(smoke=8, small=25, paper=50)


# Showing ----------------------------------------------------------------------------------------


def run(study: Study, settings: Settings) -> Outcome:
    """Train with each weight decay, compute the spectra, compare."""
    found = measured(settings, study)
    rows = [row for mode in study.modes for row in _rows(study, mode, found)]
    right = [100 * m.test.accuracy for m in found]
    gaps = [m.test.loss - m.train.loss for m in found]
    rows += [
        Row(f"test accuracy, {named(m.decay)}, per cent", 100 * m.test.accuracy) for m in found
    ]
    rows += [Row(f"training loss, {named(m.decay)}", m.train.loss) for m in found]
    rows += [Row(f"‖w‖, {named(m.decay)}", m.squared_norm**0.5) for m in found]
    printed = [study.printed.loss_gap[i] for i in (0, -1)]
    rows += [
        Row(
            "test accuracy: last less first, points",
            right[-1] - right[0],
            paper=study.gain,
            low=0.0,
        ),
        Row(
            "loss gap: last over first",
            gaps[-1] / gaps[0],
            paper=printed[1] / printed[0],
            high=1.0,
            note="range: the text",
        ),
    ]
    numbers = {"solutions": [m.to_dict() for m in found]}
    pictures = (_spectra(study, found), _sides(found))
    return Outcome(
        solutions.beside(settings, rows), pictures, numbers, _notes(settings, study, found)
    )


def named(decay: float) -> str:
    """A run, by FF's weight decay.

    >>> named(0.0), named(5e-4)
    ('weight decay 0', 'weight decay 10 × 0.0005')
    """
    return f"weight decay {FASTER} × {decay:g}" if decay else "weight decay 0"


def _rows(study: Study, mode: str, found: list[Measured]) -> list[Row]:
    """Of one mode; PP's numbers stand beside those of the mode in which they measured."""
    where = f", {mode} mode" if len(study.modes) > 1 else ""
    rows, H = [], [m.spectra[mode] for m in found]
    columns: dict[str, tuple[list[float], Columns]] = {
        "λ_max": ([h.largest for h in H], study.printed.largest),
        "tr H / P": ([h.moment(1) for h in H], study.printed.mean),
        "tr H² / P": ([h.moment(2) for h in H], study.printed.mean_square),
    }
    first = mode == study.modes[0]
    ratios: dict[str, float | None] = {
        "λ_max": study.printed.largest[-1] / study.printed.largest[0],
        "tr H² / P": study.printed.mean_square[-1] / study.printed.mean_square[0],
    }
    if not first:
        ratios = dict(zip(ratios, study.in_eval or (None, None), strict=True))
    for what, (ours, paper) in columns.items():
        beside = paper if first else (None, None, None)
        rows += [
            Row(f"{what}{where}, {named(m.decay)}", value, paper=printed)
            for m, value, printed in zip(found, ours, beside, strict=True)
        ]
        if what in ratios:  # FF's measures of sharpness
            ratio = ours[-1] / ours[0]
            rows.append(Row(f"{what}{where}: last over first", ratio, paper=ratios[what], low=1.0))
    return rows


def _spectra(study: Study, found: list[Measured]) -> Picture:
    panels = [
        panel(
            f"batch norms in {mode} mode" if len(study.modes) > 1 else "",
            {named(m.decay): m.spectra[mode] for m in found},
        )
        for mode in study.modes
    ]
    caption = "Ritz values of the Hessian and their masses, for each weight decay."
    return Picture("spectra", caption, tuple(panels))


def _sides(found: list[Measured]) -> Picture:
    decays = [1e3 * FASTER * m.decay for m in found]

    def side(title: str, values: list[float]) -> Panel:
        curve = Curve.of("", decays, values)
        return Panel(xlabel="weight decay / 10⁻³", ylabel=title, curves=(curve,))

    return Picture(
        "error-and-norm",
        "Test error, weight norm and loss gap against weight decay.",
        (
            side("test error, per cent", [100 * (1 - m.test.accuracy) for m in found]),
            side("‖w‖", [m.squared_norm**0.5 for m in found]),
            side("loss gap", [m.test.loss - m.train.loss for m in found]),
        ),
        columns=3,
    )


def _notes(settings: Settings, study: Study, found: list[Measured]) -> tuple[str, ...]:
    on = settings.pick(
        smoke="192 embedded digits",
        small="640 images of CIFAR-10 at a third of their resolution",
        paper="2,000 images of CIFAR-100, 20 of each class",
    )
    fits = ", ".join(f"{m.train.loss:.2g}" for m in found)
    notes = [
        f"{study.networks[settings.scale]} on {on}, {study.epochs[settings.scale]} epochs in "
        f"batches of {_batch(settings)}, learning rate {study.rate:g}, linear schedule, no "
        f"augmentation. FF and PP: {study.title} on CIFAR-100, 300 epochs.",
        f"Weight decays are {FASTER} times FF's. A weight decay γ acts over 1/(αγ) steps: "
        "with FF's 117,000 steps 5e-4 forgets the first weights, with these few it would hardly "
        "be felt.",
        f"Curvature on {_samples(settings)} training samples, {_steps(settings)} Lanczos steps "
        "from one random vector, as FF. A converged Ritz value counts as one eigenvalue; at its "
        "sampled mass, as FF and PP take it, tr H² is off by its own size.",
        f"Training losses: {fits}. FF's argument is for losses near zero.",
    ]
    if len(study.modes) > 1:
        notes.append(f"In train mode the batch norms see batches of {BATCH} training samples.")
    if study.init != "pytorch":
        notes.append(
            "Xavier's first weights: with PyTorch's the signal fades over nine layers without "
            "batch norm, and the outputs for two images of noise differ by 4e-5, a 24th of what "
            "they do here."
        )
    return tuple(notes)
