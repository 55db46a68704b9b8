"""The course of one or more trainings: loss and accuracy of every epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from curvescope.figures import style
from curvescope.figures.model import Curve, Dash, Panel, Scaling
from curvescope.figures.results import register
from curvescope.training.records import Epoch
from curvescope.training.run import Trained
from curvescope.training.sweeps import Sweep


def course(runs: Mapping[str, Sequence[Epoch]]) -> dict[str, Panel]:
    """A panel for each quantity there is; the test's curve is dashed beside the training's.

    Args:
        runs: Name in the legend -> epochs; one run alone may have the name ``""``.
    """
    panels = {}
    for quantity, words in (("loss", "Loss"), ("accuracy", "Accuracy")):
        drawn: list[Curve] = []
        for index, (name, epochs) in enumerate(runs.items()):
            for key, split, dash in (
                (quantity, "training", _dash(index)),
                (f"test_{quantity}", "test", "dashed"),
            ):
                if (line := _line(epochs, key)) is not None:
                    label = f"{name}, {split}" if name else split
                    drawn.append(replace(line, label=label, color=index, dash=dash))
        if drawn:
            positive = all(min(curve.y) > 0 for curve in drawn)
            scale: Scaling = "log" if quantity == "loss" and positive else "linear"
            panels[quantity] = Panel(words, "epoch", quantity, tuple(drawn), yscale=scale)
    return panels


def _dash(index: int) -> Dash:
    """When the colors are used up, dots tell the next runs apart."""
    return "dotted" if index // len(style.CYCLE) % 2 else ""


def _line(epochs: Sequence[Epoch], key: str) -> Curve | None:
    chosen = [
        (epoch.epoch, y)
        for epoch in epochs
        if (y := getattr(epoch, key)) is not None and isfinite(y)  # a training may diverge
    ]
    if not chosen:
        return None
    x, y = zip(*chosen, strict=True)
    return Curve.of("", x, y)


def _scores(result: Sweep) -> list[Panel]:
    """The score of each rate, with the chosen one marked; runs that diverged have none."""
    pairs = [(r, s) for r, s in zip(result.rates, result.scores, strict=True) if isfinite(s)]
    if not pairs:
        return []
    rates, scores = zip(*pairs, strict=True)
    lines = None if result.rate is None else {f"{result.rate:.3g}": result.rate}
    curve = Curve.of("", rates, scores, kind="points")
    return [Panel("", "learning rate", "score", (curve,), xscale="log", lines=lines)]


register(Trained, lambda result: list(course({"": result.history}).values()))
register(Sweep, _scores)
