"""LeNet5 trained in three ways, and the overlap between all of the networks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.studies.networks import Group
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020.layers import LayerStudy, flat, layer_study, peak, spread, summary
from curvescope.training import evaluate

WAYS = {"default": "lenet5", "small rate": "lenet5-slow", "momentum and decay": "lenet5-decay"}


def run(run: Run) -> Result:
    """Train in three ways and compare all networks with each other."""
    ways = {name: run.networks(key) for name, key in WAYS.items()}
    default = ways["default"]
    models = [model for group in ways.values() for model in group.models]
    studies = {
        layer: layer_study(run, default, layer, k, models=models, key="-ways")
        for layer, k in run["pairs"].items()
    }
    same = alike(ways)
    values: dict[str, float | Value] = {
        f"{layer}: dimension of the largest overlap up to 2m": peak(study, most=2 * study.m)
        for layer, study in studies.items()
        if layer != "fc3"
    }
    values["fc3: smallest over largest overlap before m"] = flat(studies["fc3"])
    for layer in ("conv2", "fc1"):
        study = studies[layer]
        for kind, chosen in (("like", same), ("unlike", ~same)):
            curves = study["between"][chosen, study.m - 1]
            values[f"{layer}: overlap at m, {kind} pairs"] = spread(curves, "pairs")
    for name, group in ways.items():
        right = [evaluate(model, default.few).accuracy for model in group.models]
        values[f"right on the training data, {name}"] = spread(right, "networks")
    caption = (
        f"Overlap between {len(models)} LeNet5 trained in three ways: mean and standard deviation "
        "over all pairs, means over pairs of one way and of two (Wu et al. 2020, fig. 9)."
    )
    shown = tuple(_panel(study, same) for study in studies.values())
    picture = Picture("overlap", caption, shown, columns=3)
    return Result(values, (picture,), {"layers": summary(studies)})


def alike(ways: Mapping[str, Group]) -> Tensor:
    """For each pair of networks, in the order of the curves, whether one way trained both."""
    names = [name for name, group in ways.items() for _ in group.models]
    return torch.tensor([a == b for a, b in combinations(names, 2)])


def _panel(study: LayerStudy, same: Tensor) -> Panel:
    curves = study["between"]
    shown = (
        Curve.mean("all pairs", None, curves, within=(0.0, 1.0)),
        Curve.of("trained alike", None, curves[same].mean(0)),
        Curve.of("trained unlike", None, curves[~same].mean(0)),
    )
    title = f"{study.layer}: overlap between networks"
    lines = {f"m = {study.m}": study.m}
    return Panel(title=title, xlabel="k", ylabel="overlap", curves=shown, lines=lines)
