"""Sec. 3.2 and app. D: the mass of the spectrum at zero along training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.flatness import rank_history
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import neuron_rank_bound
from curvescope.studies.courses import Course, Courses, courses
from curvescope.studies.granziol2020.solutions import masses, spectrum
from curvescope.studies.run import Result, Run

MODES = {"VGG-16": ("eval",), "PreResNet-110": ("train", "eval")}
_DEVIATIONS = 4
"""So many standard deviations of one random vector a mass may lie below its bound."""
_ROUNDING = 1e-12
"""A logarithmic axis has no zero."""

History = Mapping[str, Any]


def run(run: Run) -> Result:
    """Train with checkpoints, measure at each of them."""
    numbers: dict[str, Any] = {}
    values: dict[str, float] = {}
    panels = []
    for network, modes in MODES.items():
        trained = courses(run, f"degeneracy-{network}", run.describe(network))
        (course,) = trained.runs
        for mode in modes:
            where = network if len(modes) == 1 else f"{network}, {mode} mode"
            run.tell(f"{where}: mass at zero")
            history = rank_history(
                _problems(run, trained, course, mode), steps=run["steps"], generator=run.generator()
            )
            numbers[where] = {
                **asdict(history),
                "network": trained.description.network,
                "samples": trained.description.curvature,
                "classes": trained.data.classes,
            }
            values |= _masses(where, numbers[where])
        if len(modes) == 1:
            panels += [
                masses(
                    f"{trained.description.network}, epoch {epoch}",
                    {"": spectrum(run, where, Hessian(problem))},
                )
                for epoch, problem in _problems(run, trained, course, modes[0])
            ][-2:]
    caption = "Ritz values of the Hessian and their masses at two epochs (fig. 1b, 1c)."
    return Result(values, (_picture(numbers), Picture("spectra", caption, tuple(panels))), numbers)


def _problems(
    run: Run, trained: Courses, course: Course, mode: str
) -> Iterator[tuple[int, Problem]]:
    """The problem before training and at the checkpoints."""
    count = trained.description.curvature
    X, y = trained.data.X[:count], trained.data.y[:count]
    size = run["batch"]
    batches = list(zip(X.split(size), y.split(size), strict=True))
    for epoch in (0, *trained.description.recipe.checkpoints):
        yield epoch, Problem(course.at(epoch), batches, mode=mode)


def _masses(where: str, history: History) -> dict[str, float]:
    values = {}
    for p in history["points"]:
        at = f"{where}, epoch {p['epoch']:g}"
        values[f"mass of G nearest zero, {at}"] = p["gauss_newton"]["nearest"]["value"]
        values[f"mass of H, nearest, {at}"] = p["hessian"]["nearest"]["value"]
        values[f"mass of H, two nearest, {at}"] = p["hessian"]["pair"]["value"]
    return values


def derive(values: Mapping[str, float], numbers: Mapping[str, Any]) -> dict[str, float]:
    """Over all epochs: the least masses, beside the bounds, and where they sit."""
    made = {
        "share at zero by the rank bound, for the paper's counts": 1
        - neuron_rank_bound([13_416], inputs=1024, classes=10) / 1.6e7
    }
    for where, history in numbers.items():
        points, size = history["points"], history["parameters"]
        share = 1 - history["samples"] * (history["classes"] - 1) / size
        # The squares of a random unit vector's entries: a share q has the variance 2 q (1 − q) / P.
        low = share - _DEVIATIONS * (2 * share * (1 - share) / size) ** 0.5
        least = min(p["gauss_newton"]["nearest"]["value"] for p in points)
        made |= {
            f"share at zero by the rank bound, {where}": 1 - history["bound"] / size,
            f"mass of H at zero, two nearest, {where}, least of all epochs": min(
                p["hessian"]["pair"]["value"] for p in points
            ),
            f"mass of G at zero over its bound by the samples, {where}, least of all epochs": least
            / low,
            f"|Ritz value| at zero, that of G over that of H, {where}, largest of all epochs": max(
                abs(p["gauss_newton"]["nearest_value"])
                / max(abs(p["hessian"]["pair_value"]), 1e-30)
                for p in points
            ),
        }
    return made


def _picture(numbers: Mapping[str, History]) -> Picture:
    """Fig. 1d, 11 to 14: the mass at zero, and where it sits."""
    kinds: dict[str, Callable[[Any], tuple[float, float]]] = {
        "G, nearest": lambda p: (
            p["gauss_newton"]["nearest"]["value"],
            p["gauss_newton"]["nearest_value"],
        ),
        "H, nearest": lambda p: (p["hessian"]["nearest"]["value"], p["hessian"]["nearest_value"]),
        "H, two nearest": lambda p: (p["hessian"]["pair"]["value"], p["hessian"]["pair_value"]),
    }
    panels = []
    for where, history in numbers.items():
        points, mode = history["points"], where.partition(", ")[2]
        title = f"{history['network']}, {mode}" if mode else history["network"]
        epochs = [p["epoch"] for p in points]
        found = {kind: [pick(p) for p in points] for kind, pick in kinds.items()}
        mass = [Curve.of(kind, epochs, [m for m, _ in pairs]) for kind, pairs in found.items()]
        place = [
            Curve.of(kind, epochs, [max(abs(x), _ROUNDING) for _, x in pairs])
            for kind, pairs in found.items()
        ]
        panels += [
            Panel(title=title, xlabel="epoch", ylabel="mass at zero", curves=tuple(mass)),
            Panel(
                title=title,
                xlabel="epoch",
                ylabel="|Ritz value| where it sits",
                curves=tuple(place),
                yscale="log",
            ),
        ]
    return Picture(
        "degeneracy",
        "Mass of the Ritz values nearest zero along training, and where they lie (fig. 1d, 11 to "
        "14). Where the nearest one of H loses mass it has moved away from zero.",
        tuple(panels),
    )
