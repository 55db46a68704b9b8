"""Sec. 5, fig. 8 to 10: SGD against Gadam. The sharper solution generalizes better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log10, nan
from statistics import fmean
from typing import Any

import torch

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.studies.courses import Courses, courses
from curvescope.studies.granziol2020.solutions import (
    Solution,
    beyond,
    gain,
    masses,
    measured,
    over_seeds,
)
from curvescope.studies.run import Result, Run, Value
from curvescope.training import Recipe

MODES = ("train", "eval")
SETS = {"CIFAR-10": "ten", "CIFAR-100": "hundred"}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "schedule": "linear"},
    "Gadam": {"lr": 5e-4, "optimizer": "gadam", "schedule": "averaging"},
}
DECAYS = {
    "CIFAR-10": {"SGD": 3e-4, "Gadam": 0.35},
    "CIFAR-100": {"SGD": 5e-4, "Gadam": 0.25},
}
"""The paper's weight decays; that of Gadam is decoupled from the gradient."""

Found = Mapping[str, tuple[Solution, ...]]  # by optimizer


def run(run: Run) -> Result:
    """Train with both, measure in both modes, compare, on both data sets."""
    values: dict[str, float | Value] = {}
    trainings: dict[str, dict[str, Courses]] = {}
    found: dict[str, Found] = {}
    for data, key in SETS.items():
        plain = run.describe(key)
        trainings[data] = {
            name: courses(run, f"{key}-{name}", replace(plain, recipe=recipe))
            for name, recipe in recipes(plain.recipe, DECAYS[data], run["faster"]).items()
        }
        found[data] = {
            name: _solutions(run, f"{key}-{name}", each) for name, each in trainings[data].items()
        }
        values |= _values(data, found[data])
    return Result(values, (_courses(trainings), _sharpness(found), *_spectra(found)))


def recipes(plain: Recipe, decays: Mapping[str, float], faster: float) -> dict[str, Recipe]:
    """The paper's settings; the average is over the last two fifths of the epochs."""
    made = {}
    for name, settings in SETTINGS.items():
        average: dict[str, Any] = {"average_from": 3 * plain.epochs // 5} if name == "Gadam" else {}
        made[name] = replace(plain, weight_decay=faster * decays[name], **settings, **average)
    return made


def _solutions(run: Run, key: str, trained: Courses) -> tuple[Solution, ...]:
    assert trained.held_out is not None, "the descriptions hold out test images"
    few = trained.description.curvature
    return tuple(
        measured(run, key, each.model, each.seed, trained.data, trained.held_out, few, modes=MODES)
        for each in trained.runs
    )


def _values(data: str, found: Found) -> dict[str, float | Value]:
    values: dict[str, float | Value] = {}
    less = "less two standard errors"
    for mode in MODES:
        where = f"{data}, {mode} mode"
        for what in ("‖H‖", "tr H² / P"):
            for name, group in found.items():
                numbers = [each.columns(mode)[what] for each in group]
                values[f"{what}, {name}, {where}"] = over_seeds(numbers)
        values[f"‖H‖ of Gadam over that of SGD, {where}"] = over_seeds(_ratios(found, "‖H‖", mode))
        logs = [log10(ratio) for ratio in _ratios(found, "tr H² / P", mode)]
        values[f"log₁₀ of tr H² of Gadam over that of SGD, {where}, {less}"] = beyond(logs)
    for name, group in found.items():
        for what in ("training loss", "training accuracy", "test accuracy", "‖w‖"):
            numbers = [each.columns("eval")[what] for each in group]
            values[f"{what}, {name}, {data}"] = over_seeds(numbers)
    gained = gain(found["SGD"], found["Gadam"])
    return {**values, f"gain in accuracy by Gadam, {data}, {less}, points": gained}


def _ratios(found: Found, what: str, mode: str) -> list[float]:
    """A column of Gadam's solution over that of SGD's, for each seed."""
    pairs = zip(found["SGD"], found["Gadam"], strict=True)
    return [gadam.columns(mode)[what] / sgd.columns(mode)[what] for sgd, gadam in pairs]


def _courses(trainings: Mapping[str, Mapping[str, Courses]]) -> Picture:
    """Fig. 8c: the accuracy along training, and that of the averaged weights at its end."""
    panels = []
    for data, by_optimizer in trainings.items():
        curves = []
        for color, (name, each) in enumerate(by_optimizer.items()):
            rows = torch.tensor(
                [[100 * (e.test_accuracy or nan) for e in r.trained.history] for r in each.runs]
            )
            curves.append(Curve.mean(name, None, rows, color=color))
            ends = [100 * r.fits[1].accuracy for r in each.runs]
            epochs = each.description.recipe.epochs
            spread = (min(ends), max(ends))
            curves.append(
                Curve.of(
                    f"{name}, result", [epochs], [fmean(ends)], low=[spread[0]], high=[spread[1]],
                    kind="points", color=color,
                )
            )  # fmt: skip
        panels.append(
            Panel(
                title=data, xlabel="epoch", ylabel="test accuracy, per cent", curves=tuple(curves)
            )
        )
    return Picture(
        "accuracy",
        "Test accuracy along training (fig. 8c), bands: standard deviation over the seeds. The "
        "result of Gadam is the average of its weights over the last two fifths.",
        tuple(panels),
    )


def _sharpness(found: Mapping[str, Found]) -> Picture:
    """Every solution as a point: how sharp it is in each mode, and how often it errs."""
    panels = []
    for data, by_optimizer in found.items():
        curves = [
            Curve.of(
                f"{name}, {mode} mode",
                [each.columns(mode)["tr H² / P"] for each in group],
                [100 - each.columns(mode)["test accuracy"] for each in group],
                kind="points",
            )
            for name, group in by_optimizer.items()
            for mode in MODES
        ]
        panels.append(
            Panel(
                title=data,
                xlabel="tr H² / P",
                ylabel="test error, per cent",
                curves=tuple(curves),
                xscale="log",
            )
        )
    return Picture(
        "sharpness-and-error",
        "Sharpness against test error, a point for each seed; in the paper Gadam is sharper and "
        "better.",
        tuple(panels),
    )


def _spectra(found: Mapping[str, Found]) -> tuple[Picture, ...]:
    panels = [
        masses(
            f"{data}, {mode} mode", {name: group[0].spectra[mode] for name, group in each.items()}
        )
        for data, each in found.items()
        for mode in MODES
    ]
    caption = "Ritz values of the Hessian and their masses (fig. 8 to 10)."
    return (Picture("spectra", caption, tuple(panels)),)
