"""Batch norm takes the mean from the inputs and the peak from the overlap (Wu et al. 2020, F.4)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from curvescope.figures.model import Panel, Picture
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020 import autocorrelation, panels
from curvescope.studies.wu2020.layers import LayerStudy, layer_studies, peak, summary

SHOWN = 40
"""Eigenvalues that are drawn."""


def run(run: Run) -> Result:
    """Look at the inputs of each network, and study all layers of one kind."""
    values: dict[str, float | Value] = {}
    numbers = {}
    for key, title in run["networks"].items():
        inputs = autocorrelation.inputs(run, run.networks(key))
        fc = {layer: found for layer, found in inputs.items() if layer.startswith("fc")}
        first = next(iter(inputs))
        values |= autocorrelation.by_kind({first: inputs[first], **fc}, title)
        each = torch.stack([found["structure"][:, 0] for layer, found in fc.items()
                            if layer != first])  # fmt: skip
        values[f"largest (v₁·Ê[x])², {title}, fc"] = Value(
            float(each.max()), ", ".join(f"{value:.3f}" for value in each.flatten())
        )
        if key in run["by_layer"]:
            values |= autocorrelation.by_layer(inputs, title)
        numbers[title] = {layer: found["structure"].tolist() for layer, found in inputs.items()}
    if not run.get("studied"):
        return Result(values, (_spectra(run),), numbers)
    studies = layer_studies(run, run.networks(run["studied"]), run["pairs"])
    for layer, study in studies.items():
        if layer == "conv1":
            values[f"conv1: dimension of the largest overlap, m = {study.m}"] = peak(study)
        else:
            values[f"{layer}: largest overlap over the last"] = prominence(study)
    fc1 = studies["fc1"]
    on_mean = (fc1["true input"][0, : fc1.m] > 0.5).double().mean()
    values["fc1: share of h_i with Corr(v₁, h_i) above ½, i ≤ m"] = float(on_mean)
    values["fc1: overlap of true and Kronecker top 9"] = float(fc1["overlap"][:, 8].mean())
    numbers["layers"] = summary(studies)
    return Result(values, _pictures(studies), numbers)


def prominence(study: LayerStudy) -> Value:
    """The largest overlap over the last one: 1 where the curve only rises."""
    mean = study.between.mean
    place = study.between.peak
    note = f"largest at {place} of {len(mean)}, {float(mean.max()):.3g}; m = {study.m}"
    return Value(float(mean.max() / mean[-1]), note)


def _pictures(studies: Mapping[str, LayerStudy]) -> tuple[Picture, ...]:
    overlaps = tuple(panels.between_models(study, name) for name, study in studies.items())
    fc1 = studies["fc1"]
    heat = panels.correspondences("fc1", fc1.parts)
    spectrum = _eigenvalues("fc1", {"": fc1["inputs"].mean(0)[:SHOWN]})
    return (
        Picture(
            "overlap",
            "Overlap between networks with batch norm (Wu et al. 2020, fig. 28).",
            overlaps,
            columns=3,
        ),
        Picture(
            "inputs",
            "fc1 with batch norm: E[xxᵀ], the approximation, and the eigenvectors on the first of "
            "E[xxᵀ] (Wu et al. 2020, fig. 27, 29).",
            (spectrum, *panels.comparison(fc1, "fc1"), heat[0], heat[2]),
            columns=3,
        ),
    )


def _spectra(run: Run) -> Picture:
    shown = {}
    for key, title in run["networks"].items():
        found = autocorrelation.inputs(run, run.networks(key))
        shown[title] = list(found.values())[1]["eigenvalues"].mean(0)
    panel = _eigenvalues("inputs of the second layer", shown)
    caption = "With batch norm no eigenvalue of E[xxᵀ] stands out (Wu et al. 2020, table 8)."
    return Picture("spectra", caption, (panel,), columns=1)


def _eigenvalues(title: str, shown: Mapping[str, Tensor]) -> Panel:
    ratios = {name: panels.over_first(values) for name, values in shown.items()}
    label = "eigenvalue of E[xxᵀ] over the largest"
    return curves(title, "index", label, ratios, kind="points")
