"""LeNet5 on CIFAR-10: overlap between independent networks, layer by layer, and by fc1's width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curvescope.figures.model import Picture
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020 import panels
from curvescope.studies.wu2020.layers import LayerStudy, flat, layer_studies, peak, summary


def run(run: Run) -> Result:
    """Study all layers of LeNet5, and fc1 of its variants."""
    studies = layer_studies(run, run.networks("lenet5"), run["pairs"])
    values: dict[str, float | Value] = {
        f"{layer}: dimension of the largest overlap, m = {study.m}": peak(study)
        for layer, study in studies.items()
        if layer != "fc3"
    }
    values["fc3: smallest over largest overlap before m"] = flat(studies["fc3"])
    for layer in ("fc1", "fc2", "conv2"):
        study = studies[layer]
        top = study["ratio"][:, : study.m]
        values[f"{layer}: mean of ‖Mat(h)‖/‖Mat(h)‖_F, i ≤ m"] = float(top.mean())
    numbers = {"layers": summary(studies)}
    widths = {"120": studies["fc1"]}
    for width, key in run["widths"].items():
        group = run.networks(key)
        found = layer_studies(run, group, {"fc1": run["width_pairs"]})
        widths[width] = found["fc1"]
        values[f"{group.name}, fc1: dimension of the largest overlap"] = peak(found["fc1"])
        numbers[group.name] = summary(found)
    return Result(values, _pictures(studies, widths), numbers)


def derive(values: Mapping[str, float], numbers: Mapping[str, Any]) -> dict[str, float]:
    """Rank one in fc1, where fc2's overlap first falls, how fc3's falls behind its 10 classes."""
    layers = numbers.get("layers", {})
    fc2, fc3 = (layers.get(name, {}).get("between_mean", []) for name in ("fc2", "fc3"))
    found = {}
    ratios = layers.get("fc1", {}).get("ratio_mean", [])
    if ratios:
        above = sum(ratio > 0.5 for ratio in ratios)
        found["fc1: share of eigenvectors with ‖Mat(h)‖/‖Mat(h)‖_F above ½"] = above / len(ratios)
    if fc2:
        falls = (k for k in range(1, len(fc2)) if fc2[k] < fc2[k - 1])
        found["fc2: dimension of the early peak"] = float(next(falls, len(fc2)))
    if len(fc3) >= 14:
        found["fc3: overlap at m − 1 over that at m + 4"] = fc3[8] / fc3[13]
    return found


def _pictures(
    studies: Mapping[str, LayerStudy], widths: Mapping[str, LayerStudy]
) -> tuple[Picture, ...]:
    overlaps = tuple(panels.between_models(study, name) for name, study in studies.items())
    by_width = tuple(
        panels.between_models(study, f"fc1 with {width} outputs") for width, study in widths.items()
    )
    layers = [p for name, study in studies.items() for p in panels.comparison(study, name)]
    return (
        Picture(
            "overlap",
            "Overlap of the top eigenspaces of independently trained LeNet5, mean and standard "
            "deviation over pairs, with the curve that the factors' eigenvalues let expect "
            "(Wu et al. 2020, fig. 1a, 5a, 23).",
            overlaps,
            columns=3,
        ),
        Picture(
            "widths",
            "The overlap of fc1 by its number of outputs (Wu et al. 2020, fig. 5a).",
            by_width,
        ),
        Picture(
            "rank-one",
            "Eigenvectors of a layer, as matrices, beside rank one (Wu et al. 2020, fig. 6, 22).",
            (panels.rank_one(studies.values()),),
            columns=1,
        ),
        Picture(
            "layers",
            "Top eigenvalues and eigenspaces of the layers of LeNet5, true and by the product.",
            tuple(layers),
        ),
    )
