"""Batch norm takes the mean from the inputs and the peak from the overlap (Wu et al. 2020, F.4)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020 import autocorrelation, panels
from curvescope.studies.wu2020.layers import LayerStudy, layer_studies, peak, summary

LATE = "norms after pooling"


def run(run: Run) -> Result:
    """Study LeNet5-BN with its norms before and after the pooling, and inputs of other networks."""
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
    pictures = []
    for key, words in (("lenet5-bn", ""), ("lenet5-bn-late", f", {LATE}")):
        studies = layer_studies(run, run.networks(key), run["pairs"])
        for layer, study in studies.items():
            if layer == "conv1":
                values[f"conv1{words}: dimension of the largest overlap, m = {study.m}"] = peak(
                    study
                )
            else:
                values[f"{layer}{words}: largest overlap over the last"] = prominence(study)
        fc1 = studies["fc1"]
        on_mean = (fc1["true input"][0, : fc1.m] > 0.5).double().mean()
        values[f"fc1{words}: share of h_i with Corr(v₁, h_i) above ½, i ≤ m"] = float(on_mean)
        top = fc1["overlap"][:, 8].mean()
        values[f"fc1{words}: overlap of true and Kronecker top 9"] = float(top)
        numbers |= {f"layers{words}": summary(studies)}
        pictures += _pictures(studies, words)
    return Result(values, tuple(pictures), numbers)


def prominence(study: LayerStudy) -> Value:
    """The largest overlap over the last one: 1 where the curve only rises."""
    mean = study.between.mean
    place = study.between.peak
    note = f"largest at {place} of {len(mean)}, {float(mean.max()):.3g}; m = {study.m}"
    return Value(float(mean.max() / mean[-1]), note)


def _pictures(studies: Mapping[str, LayerStudy], words: str) -> list[Picture]:
    late = "-late" if words else ""
    overlaps = tuple(panels.between_models(study, name) for name, study in studies.items())
    fc1 = studies["fc1"]
    spectrum = Panel(
        title="fc1: eigenvalues of E[xxᵀ]", xlabel="index", ylabel="over the largest",
        curves=(Curve.of("", None, panels.over_first(fc1["inputs"].mean(0))[:40], kind="points"),),
    )  # fmt: skip
    heat = panels.correspondences("fc1", fc1.parts)
    where = LATE if words else "norms before pooling"
    return [
        Picture(
            f"overlap{late}",
            f"Overlap between LeNet5-BN, {where} (Wu et al. 2020, fig. 28).",
            overlaps,
            columns=3,
        ),
        Picture(
            f"inputs{late}",
            f"fc1 of LeNet5-BN, {where}: E[xxᵀ], the approximation, and the eigenvectors on its "
            "first (Wu et al. 2020, fig. 27, 29).",
            (spectrum, *panels.comparison(fc1, "fc1"), heat[0], heat[2]),
            columns=3,
        ),
    ]
