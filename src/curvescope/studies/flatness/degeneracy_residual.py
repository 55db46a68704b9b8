"""FF app. D.2: the mass at zero of a residual network along training, batch norms in both modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import DegeneracyHistory
from curvescope.flatness.degeneracy import DegeneracyPoint
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.degeneracy import Plan, recipe_with_checkpoints

MODES = ("train", "eval")
EPOCHS = {"smoke": 2, "small": 12, "paper": 20}
_DEVIATIONS = 4
"""So many standard deviations of one random vector a mass may lie below its bound."""

_ROUNDING = 1e-12
"""A logarithmic axis has no zero."""

Histories = Mapping[str, DegeneracyHistory]
MassAndPlace = Callable[[DegeneracyPoint], tuple[float, float]]


def run(settings: Settings) -> Outcome:
    """Train with checkpoints, measure at each of them in both modes."""
    plan = Plan(
        "flatness-degeneracy-residual",
        settings.pick(smoke="WideResNet-10x1", small="PreResNet-11", paper="PreResNet-110"),
        _data(settings),
        recipe_with_checkpoints(settings, settings.pick(**EPOCHS)),
        settings.pick(smoke=48, small=128, paper=128),
        settings.pick(smoke=10, small=40, paper=100),
    )
    histories = {mode: plan.history(settings, mode) for mode in MODES}
    first = histories[MODES[0]]
    notes = (
        f"{plan.network}, {first.parameters:,} parameters, {len(plan.data):,} samples of "
        f"{plan.data.classes} classes, {plan.recipe.epochs} epochs, {plan.steps} Lanczos steps; "
        f"curvature on {plan.samples} samples, one batch. FF: PreResNet-110 on all of CIFAR-100, "
        "225 epochs, 100 steps.",
        "FF print no numbers, only that the mass at zero is large in both modes. The range is "
        f"ours: G of {plan.samples} samples and {plan.data.classes} classes has at most "
        f"{_rank(plan.samples, plan.data):,} eigenvalues that are not zero, so that "
        f"{1 - _rank(plan.samples, plan.data) / first.parameters:.4f} or more lie there, less "
        f"{_DEVIATIONS} standard deviations of one random vector. Of H the two Ritz values nearest "
        "zero together; it has no such bound, and the mass it shows falls with more steps.",
        f"FF's bound of the rank, 4 d_y (Σ N_l + d_x), is {first.bound:,} here"
        + (
            ", more than there are parameters: it says nothing."
            if first.predicted <= 0
            else f": {first.predicted:.4f} or more at zero."
        ),
    )
    rows = tuple(row for mode, found in histories.items() for row in _rows(mode, found, plan))
    numbers = {mode: asdict(found) for mode, found in histories.items()}
    return Outcome(rows, _pictures(histories), numbers, notes)


def _data(settings: Settings) -> Dataset:
    if settings.scale == "paper":
        return solutions.hundred(settings, 40, 1)[0]
    if settings.scale == "small":
        return solutions.smaller(solutions.photographs(settings, 1024, 1), 3)[0]
    return solutions.smaller(solutions.digits(settings, 192, 1), 4)[0]


def _rank(samples: int, data: Dataset) -> int:
    """The most eigenvalues of G that are not zero: the probabilities of a sample sum to 1."""
    return samples * (data.classes - 1)


def _rows(mode: str, history: DegeneracyHistory, plan: Plan) -> list[Row]:
    size = history.parameters
    share = 1 - _rank(plan.samples, plan.data) / size
    # The squares of a random unit vector's entries: a share q has the variance 2 q (1 − q) / P.
    low = share - _DEVIATIONS * (2 * share * (1 - share) / size) ** 0.5
    rows = []
    for p in history.points:
        where = f"{mode} mode, epoch {p.epoch:g}"
        rows += [
            Row(
                f"mass of G nearest zero, {where}",
                p.gauss_newton.nearest.value,
                low=low,
                note="range: ours",
            ),
            Row(f"mass of H, nearest, {where}", p.hessian.nearest.value),
            Row(f"mass of H, two nearest, {where}", p.hessian.pair.value),
        ]
    return rows


def _pictures(histories: Histories) -> tuple[Picture, ...]:
    """FF fig. 13 for G, fig. 14 for H: the mass at zero, and where it sits."""
    G = _along(
        histories,
        {"nearest": lambda p: (p.gauss_newton.nearest.value, p.gauss_newton.nearest_value)},
    )
    H = _along(
        histories,
        {
            "nearest": lambda p: (p.hessian.nearest.value, p.hessian.nearest_value),
            "two nearest": lambda p: (p.hessian.pair.value, p.hessian.pair_value),
        },
    )
    return (
        Picture("gauss-newton", "Mass of G at zero and its place (FF fig. 13).", G),
        Picture(
            "hessian",
            "Mass of H at zero and its place (FF fig. 11, 14). Where the nearest Ritz value loses "
            "mass it has moved away from zero: the mass has split between two.",
            H,
        ),
    )


def _along(histories: Histories, kinds: Mapping[str, MassAndPlace]) -> tuple[Panel, Panel]:
    masses, places = [], []
    for mode, history in histories.items():
        epochs = [p.epoch for p in history.points]
        for kind, pick in kinds.items():
            label = f"{mode} mode" if len(kinds) == 1 else f"{kind}, {mode} mode"
            found = [pick(p) for p in history.points]
            masses.append(Curve.of(label, epochs, [mass for mass, _ in found]))
            away = [max(abs(place), _ROUNDING) for _, place in found]
            places.append(Curve.of(label, epochs, away))
    return (
        Panel(xlabel="epoch", ylabel="mass at zero", curves=tuple(masses)),
        Panel(
            xlabel="epoch",
            ylabel="|Ritz value| where it sits",
            curves=tuple(places),
            yscale="log",
        ),
    )


def _checks(outcome: Outcome) -> Iterator[Row]:
    """FF app. D.2: “the empirical Hessian spectra are consistent with large rank degeneracy”."""
    for mode in MODES:
        found = [row.ours for row in outcome.rows if row.what.startswith("mass of H, two nearest")
                 and f"{mode} mode" in row.what]  # fmt: skip
        yield Row(
            f"mass of H at zero, two nearest, {mode} mode, least of all epochs",
            min(found),
            low=0.5,
            note="“large rank degeneracy”: most of the spectrum; range ours",
        )


ENTRY = Entry(
    name="flatness/degeneracy-residual",
    source="FF app. D: fig. 11 (PreResNet), 13, 14",
    shows="The Hessian of a residual network is degenerate throughout training, and its "
    "Gauss–Newton part more so, with batch norms in either mode.",
    cost={
        "smoke": "4 s, 192 coarse embedded digits, WideResNet-10x1",
        "small": "5 minutes, 1,024 coarse images of CIFAR-10, PreResNet-11",
        "paper": "PreResNet-110, 4,000 images of CIFAR-100, 20 epochs: 150 s on an H200",
    },
    run=run,
    subject={
        "smoke": "WideResNet-10x1 on embedded digits",
        "small": "PreResNet-11 on cifar-10",
        "paper": "PreResNet-110 on cifar-100",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": "PreResNet-11 instead of PreResNet-110, 1,024 images of CIFAR-10 at a third of "
        f"their resolution instead of CIFAR-100, {EPOCHS['small']} epochs instead of 225; "
        "curvature of 128 images, 40 Lanczos steps instead of 100",
        "paper": f"4,000 images of CIFAR-100 instead of 50,000, {EPOCHS['paper']} epochs instead "
        "of 225; curvature of 128 images",
    },
    checks=_checks,
)
