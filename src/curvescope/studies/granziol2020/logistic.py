"""Sec. 4, fig. 2: logistic regression on MNIST with three weight decays."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from curvescope.figures.model import Panel, Picture
from curvescope.spectra import SpectralMeasure
from curvescope.studies.granziol2020.solutions import (
    DECAYS,
    FITS,
    Solutions,
    against_decay,
    by_decay,
    gain,
    last_over_first,
    least_step,
    masses,
    moment,
    named,
    solutions,
    table,
)
from curvescope.studies.networks import Group
from curvescope.studies.run import Result, Run, Value
from curvescope.training import evaluate

KEY = "logistic"
_PRINTED = {"‖H‖": (12.26, 14.17, 15.84), "tr H / P": (0.0132, 0.0153, 0.0171)}
_ACCURACY = (93.48, 94.00, 94.08)


def run(run: Run) -> Result:
    """Train with each weight decay, measure, compare."""
    groups = by_decay(run, KEY)
    found = {decay: solutions(run, f"{KEY}-{decay:g}", group) for decay, group in groups.items()}
    values: dict[str, float | Value] = dict(table(found, (*_PRINTED, *FITS)))
    for what in _PRINTED:
        values[f"{what}: last over first"] = last_over_first(values, what)
        values[f"{what}: least ratio from one weight decay to the next"] = least_step(values, what)
    first, last = (found[DECAYS[i]] for i in (0, -1))
    values["gain in accuracy, last less first, less two standard errors, points"] = gain(
        first, last
    )
    values["error of the mean eigenvalue from one random vector, relative"] = one_vector(
        first[0].spectra["eval"]
    )
    for decay, each in groups.items():
        rest = _held_out_elsewhere(run, each)
        values[named("test accuracy on other digits, lowest", decay)] = min(rest)
        values[named("test accuracy on other digits, highest", decay)] = max(rest)
    return Result(values, _pictures(found, paper=run.scale != "smoke"))


def one_vector(H: SpectralMeasure) -> float:
    """The relative standard deviation of ``vᵀHv`` for one Gaussian ``v``: ``√2 ‖H‖_F / tr H``."""
    return sqrt(2 * moment(H, 2) / H.dimension) / moment(H, 1)


def _held_out_elsewhere(run: Run, group: Group) -> list[float]:
    """The accuracy on each stretch of training digits that were not trained on, in per cent."""
    images = replace(group.description.images, samples=None)
    whole = images.load(root=run.root, seed=run.seed, device=run.device)
    size, start = len(group.held_out), len(group.data)
    starts = range(start, len(whole) - size + 1, size)
    return [
        100 * evaluate(group.models[0], (whole.X[i : i + size], whole.y[i : i + size])).accuracy
        for i in starts
    ]


def _pictures(found: Solutions, *, paper: bool) -> tuple[Picture, ...]:
    def panel(what: str, column: str, numbers: tuple[float, ...]) -> Panel:
        printed = {"Granziol": numbers} if paper else None
        return against_decay(what, column, {"": (found, "eval")}, printed=printed)

    return (
        Picture(
            "weight-decay",
            "Largest and mean eigenvalue of the Hessian and accuracy against weight decay.",
            (
                *(panel(what, what, numbers) for what, numbers in _PRINTED.items()),
                panel("accuracy, per cent", "test accuracy", _ACCURACY),
            ),
            columns=3,
        ),
        Picture(
            "spectra",
            "Ritz values of the Hessian and their masses (fig. 2).",
            tuple(
                masses(f"weight decay {decay:g}", {"": group[0].spectra["eval"]})
                for decay, group in found.items()
            ),
            columns=3,
        ),
    )
