"""F-200² on MNIST: layers beside their Kronecker products, spectra of E[M], fc2's early peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from curvescope.figures.model import Picture
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.networks import Group
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020 import panels
from curvescope.studies.wu2020.layers import LayerStudy, layer_studies, layer_study, spread, summary

CLASSES = 10
START, MINIMUM, RANDOM = "initialization", "minimum", "random labels"


def run(run: Run) -> Result:
    """Study all layers at the minimum, and fc1 at the start and with random labels."""
    networks, random = run.networks("f200"), run.networks("f200-random")
    studies = layer_studies(run, networks, run["pairs"])
    situations = _situations(run, networks, random, studies["fc1"])
    outputs = _outputs(run, networks, random)
    fc2 = studies["fc2"].between.mean
    values: dict[str, float | Value] = {
        f"{layer}: overlap of true and Kronecker top 9": spread(study["overlap"][:, 8], "networks")
        for layer, study in studies.items()
        if layer != "fc3"
    }
    values["fc2: dimension of the early peak between models"] = Value(
        int(fc2[: 3 * CLASSES].argmax()) + 1, studies["fc2"].verdict
    )
    values["fc2: overlap between models at 9"] = float(fc2[8])
    gamma = studies["fc2"]["inputs"]
    values["γ₂/γ₁ of E[xxᵀ], fc2"] = spread(gamma[:, 1] / gamma[:, 0], "networks")
    for layer, found in outputs.items():
        for name, tau in found.items():
            gaps = tau[:, CLASSES - 2] / tau[:, CLASSES - 1]
            values[f"τ₉/τ₁₀ of E[M], {layer}, {name}"] = spread(gaps, "networks")
    for name, study in situations.items():
        values[f"fc1, {name}: spectrum of the layer and of E[M], largest distance"] = _distance(
            study
        )
    pictures = (
        _figure_4(situations, outputs["fc2"]),
        _figure_2(studies),
        _figure_24(studies["fc2"]),
    )
    return Result(values, pictures, {"layers": summary(studies)})


def derive(values: Mapping[str, float], numbers: Mapping[str, Any]) -> dict[str, float]:
    """The gap of E[M] at the start and at the minimum over that with random labels (sec. 4.4)."""
    found = {}
    for layer in ("fc1", "fc2"):
        random = values.get(f"τ₉/τ₁₀ of E[M], {layer}, {RANDOM}")
        for name in (START, MINIMUM):
            own = values.get(f"τ₉/τ₁₀ of E[M], {layer}, {name}")
            if own is not None and random:
                found[f"τ₉/τ₁₀ of {layer}, {name} over {RANDOM}"] = own / random
    return found


def _situations(
    run: Run, networks: Group, random: Group, minimum: LayerStudy
) -> dict[str, LayerStudy]:
    k = run["situations"]
    starts = [network.at_start() for network in networks.networks]
    return {
        START: layer_study(run, networks, "fc1", k, models=starts, key="-start"),
        MINIMUM: minimum,
        RANDOM: layer_study(run, random, "fc1", k),
    }


def _outputs(run: Run, networks: Group, random: Group) -> dict[str, dict[str, Tensor]]:
    """The largest eigenvalues of ``E[M]`` of fc1 and fc2, ``[networks, 30]`` at most."""
    situations = {
        START: (networks, [network.at_start() for network in networks.networks]),
        MINIMUM: (networks, list(networks.models)),
        RANDOM: (random, list(random.models)),
    }

    def compute() -> dict[str, Tensor]:
        run.tell("spectra of the output Hessians")
        found: dict[str, list[Tensor]] = {}
        for name, (own, models) in situations.items():
            for model in models:
                factors = kronecker_factors(own.problem(model), layers=("fc1", "fc2"))
                for layer, each in factors.items():
                    tau = torch.linalg.eigvalsh(each.output_hessian.double()).flip(0)[:30]
                    found.setdefault(f"{layer} {name}", []).append(tau)
        return {key: torch.stack(values) for key, values in found.items()}

    parts = run.once("f200-outputs", compute)
    return {
        layer: {name: parts[f"{layer} {name}"].cpu() for name in situations}
        for layer in ("fc1", "fc2")
    }


def _distance(study: LayerStudy, k: int = 20) -> Value:
    """Between ``λ_i/λ_1`` of the layer and ``τ_i/τ_1`` of ``E[M]``, for ``i ≤ k``."""
    k = min(k, study["true"].shape[1], study.m)
    true = study["true"][:, :k] / study["true"][:, :1]
    outputs = study["outputs"][:, :k] / study["outputs"][:, :1]
    return spread((true - outputs).abs().amax(1), "networks")


def _figure_2(studies: Mapping[str, LayerStudy]) -> Picture:
    shown = [p for name, study in studies.items() for p in panels.comparison(study, name)]
    caption = (
        "Top eigenvalues and eigenspaces of the layers of F-200², true and by the product; mean "
        "and standard deviation over the networks (Wu et al. 2020, fig. 2a, 2b)."
    )
    return Picture("layers", caption, tuple(shown))


def _figure_4(situations: Mapping[str, LayerStudy], outputs: Mapping[str, Tensor]) -> Picture:
    first = [
        panels.spectra(f"fc1, {name}", study["outputs"][0], study["true"][0])
        for name, study in situations.items()
    ]
    second = [panels.spectra(f"fc2, {name}", tau[0]) for name, tau in outputs.items()]
    caption = (
        "The spectrum of a layer's Hessian beside that of its output Hessian, at initialization, "
        "at the minimum and with random labels, first network (Wu et al. 2020, fig. 4)."
    )
    return Picture("situations", caption, (*first, *second), columns=3)


def _figure_24(study: LayerStudy) -> Picture:
    overlaps = panels.between_models(study, "fc2: overlap between models")
    heat = panels.correspondences("fc2", study.parts, columns=20)
    caption = (
        "fc2 of F-200²: only the first c − 1 eigenvectors are built on the mean input, and the "
        "overlap of independent networks peaks early (Wu et al. 2020, fig. 24)."
    )
    return Picture("early-peak", caption, (overlaps, panels.factor_spectra(study), *heat[::2]))
