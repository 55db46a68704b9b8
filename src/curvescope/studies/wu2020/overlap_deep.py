"""Variants of VGG11 and ResNet18: overlap between independent networks, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from curvescope.figures.model import Panel, Picture
from curvescope.studies.networks import Group
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020 import panels
from curvescope.studies.wu2020.layers import LayerStudy, flat, layer_studies, spread, summary
from curvescope.training import evaluate

NEAR = 0.2
"""A peak within this share of ``m`` counts as one at ``m``; the number is ours."""
WINDOW = 10
"""Eigenvectors over which fig. 26e and 26f take a mean."""
SHOWN = {"conv5": "12, 25", "conv2": "13, 26"}
MAPS = ("conv1", "conv2", "conv3")


def run(run: Run) -> Result:
    """Study layers of each variant."""
    values: dict[str, float | Value] = {}
    numbers = {}
    pictures: list[Picture] = []
    for title, variant in run["variants"].items():
        group = networks(run, variant["network"], variant["data"])
        model = group.models[0]
        sizes = {x: 2 * len(model.get_parameter(f"{x}.weight")) for x in variant["layers"]}
        studies = layer_studies(run, group, sizes)
        right = [evaluate(model, group.few).accuracy for model in group.models]
        values[f"right on the training data, {title}"] = spread(right, "networks")
        values |= _values(title, studies)
        numbers[title] = summary(studies)
        pictures += _pictures(title, studies)
    return Result(values, tuple(pictures), numbers)


def networks(run: Run, network: str, data: str) -> Group:
    """The networks of a variant: all are trained alike."""
    plan = run.describe("deep")
    plan = replace(plan, network=network, images=replace(plan.images, data=data))
    return run.networks(f"{network.lower()}-{data}", plan)


def kind(peak: float, m: int) -> str:
    """Where a peak is.

    >>> kind(20, 32), kind(33, 32), kind(60, 32)
    ('early', 'at m', 'delayed')
    """
    if peak < (1 - NEAR) * m:
        return "early"
    return "at m" if peak <= (1 + NEAR) * m else "delayed"


def _values(title: str, studies: Mapping[str, LayerStudy]) -> dict[str, float | Value]:
    hidden = {layer: study for layer, study in studies.items() if layer != "fc1"}
    seen = {layer: kind(study.between.peak, study.m) for layer, study in hidden.items()}
    expected = {
        layer: kind(float(study["predicted peak"].double().mean()), study.m)
        for layer, study in hidden.items()
    }
    values: dict[str, float | Value] = {
        f"{title}: share of the convolutions whose overlap peaks at m": Value(
            sum(where == "at m" for where in seen.values()) / len(seen),
            ", ".join(f"{layer} {where}" for layer, where in seen.items()),
        ),
        f"{title}: share whose kind of peak the factors predict": Value(
            sum(seen[layer] == expected[layer] for layer in seen) / len(seen),
            ", ".join(f"{layer} {where}" for layer, where in expected.items()),
        ),
    }
    for what, layers in (("fc", ["fc1"]), ("conv", [x for x in hidden if x != "conv1"])):
        found = [studies[layer]["structure"] for layer in layers if layer in studies]
        if found:
            values[f"(v₁·Ê[x])², {title}, {what}"] = spread(torch.cat(found)[:, 0])
            values[f"λ₁/λ₂, {title}, {what}"] = spread(torch.cat(found)[:, 1])
    if "fc1" in studies:
        values[f"{title}, fc1: smallest over largest overlap before m"] = flat(studies["fc1"])
    return values


def _pictures(title: str, studies: Mapping[str, LayerStudy]) -> list[Picture]:
    file = title.replace(", ", "-").lower()
    shown = tuple(panels.between_models(study, layer) for layer, study in studies.items())
    caption = (
        f"Overlap of the top eigenspaces of independently trained {title}, with the curve that "
        "the factors let expect (Wu et al. 2020, fig. 5, 10, 11)."
    )
    made = [Picture(f"overlap-{file}", caption, shown, columns=3, title=title)]
    for layer, figures in SHOWN.items():
        if layer in studies and title.startswith("VGG"):
            words = f"{layer} of {title}: what decides where its overlap peaks (fig. {figures})."
            made.append(Picture(f"{layer}-{file}", words, _mixture(studies[layer]), 3, title))
    maps = [layer for layer in MAPS if layer in studies]
    if maps and title.startswith("VGG"):
        heat = [panels.correspondences(layer, studies[layer].parts)[::2] for layer in maps]
        words = f"Eigenvectors of {title} against those of E[xxᵀ] (first version, fig. 14 to 16)."
        panels_ = tuple(panel for each in heat for panel in each)
        made.append(Picture(f"correspondence-{file}", words, panels_, title=title))
    return made


def _mixture(study: LayerStudy) -> tuple[Panel, ...]:
    """What decides where the overlap of a layer peaks (F.3.3)."""
    heat = panels.correspondences(study.layer, study.parts, columns=50)
    shares = curves(
        f"{study.layer}: share of h_i on v₁", "i", f"Corr(v₁, h_i), mean of {WINDOW}",
        {
            label: _smooth(study[f"{key} input"][0])
            for label, key in (("true", "true"), ("Kronecker", "approximate"))
        },
        lines={f"m = {study.m}": study.m}, ylim=(0.0, 1.05),
    )  # fmt: skip
    between = panels.between_models(study, f"{study.layer}: overlap between models")
    return (between, panels.factor_spectra(study), *heat[::2], shares)


def _smooth(values: Tensor) -> Tensor:
    """Means over the ``WINDOW`` values around each place, as far as there are."""
    half = WINDOW // 2
    return torch.stack([values[max(0, i - half) : i + half].mean() for i in range(len(values))])
