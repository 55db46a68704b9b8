"""Eigenvectors of the layers of LeNet5: as matrices, and against those of the factors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from curvescope.figures.model import Picture
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run, Value
from curvescope.studies.wu2020 import panels
from curvescope.studies.wu2020.layers import LayerStudy, layer_study

FIGURES = {"fc1": "3, 14", "fc2": "15", "conv1": "16", "conv2": "17"}
DIAGONAL = 20
"""Eigenvectors for which the diagonal of the correspondence with ``E[M]`` is looked at."""
FIRST = 9
"""c − 1."""


def run(run: Run) -> Result:
    """Study the four layers of the first network."""
    networks = run.networks("lenet5")
    first = networks.models[:1]
    studies = {
        layer: layer_study(run, networks, layer, k, models=first, key="-first")
        for layer, k in run["pairs"].items()
    }
    singular = studies["fc1"]["singular values"][:4]
    values: dict[str, float | Value] = {}
    for i, sigma in enumerate(singular, 1):
        values[f"fc1: first singular value of h_{i}"] = Value(
            float(sigma[0]), f"the second {float(sigma[1]):.3f}"
        )
    for layer, study in studies.items():
        values[f"{layer}: mean of Corr(v₁, h_i), i ≤ m"] = Value(
            mean_input_share(study.parts, study.m), f"m = {study.m}"
        )
    values[f"fc2: mean of Corr(v₁, h_i), i ≤ {FIRST}"] = mean_input_share(
        studies["fc2"].parts, FIRST
    )
    diagonals = {layer: diagonal(study.parts) for layer, study in studies.items()}
    for layer, share in diagonals.items():
        values[f"{layer}: mean of Corr(u_i, h_i), i ≤ {min(DIAGONAL, studies[layer].m)}"] = share
    values["diagonal of fc2 over that of fc1"] = diagonals["fc2"] / diagonals["fc1"]
    for layer, study in studies.items():
        for side, factor in panels.FACTORS.items():
            name = f"{layer}: cosine of the true and the Kronecker pattern, {factor}"
            values[name] = likeness(study[f"true {side}"], study[f"approximate {side}"])
    numbers = {"corr_v1": {layer: s["true input"][0].tolist() for layer, s in studies.items()}}
    return Result(values, _pictures(studies, singular), numbers)


def mean_input_share(found: Mapping[str, Tensor], most: int) -> float:
    """The mean of ``Corr(v_1, h_i)`` over the first eigenvectors: 1 where all are on it."""
    return float(found["true input"][0, :most].mean())


def diagonal(found: Mapping[str, Tensor]) -> float:
    """The mean of ``Corr(u_i, h_i)``: 1 where eigenvectors go with those of ``E[M]`` in order."""
    return float(found["true output"][:DIAGONAL, :DIAGONAL].diagonal().mean())


def likeness(first: Tensor, second: Tensor) -> float:
    """The cosine of two patterns as vectors.

    >>> likeness(torch.eye(2), 3 * torch.eye(2))
    1.0
    """
    return float(torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), 0))


def _pictures(studies: Mapping[str, LayerStudy], singular: Tensor) -> tuple[Picture, ...]:
    shown = {f"h_{i}": sigma for i, sigma in enumerate(singular, 1)}
    panel = curves("", "index of the singular value", "singular value of Mat(h)", shown,
                   ylim=(0.0, 1.05))  # fmt: skip
    caption = (
        "The ten largest singular values of the first four eigenvectors of fc1, each as a matrix "
        "(Wu et al. 2020, fig. 1b)."
    )
    pictures = []
    for layer, study in studies.items():
        columns = 3 * study.m if study.m < 30 else study.m + study.m // 4
        pictures.append(
            Picture(
                f"correspondence-{layer}",
                f"Eigenvectors of {layer} (m = {study.m}) against those of E[xxᵀ] and E[M], for "
                f"the true Hessian and the Kronecker product (Wu et al. 2020, fig. "
                f"{FIGURES[layer]}).",
                tuple(panels.correspondences(layer, study.parts, columns=columns)),
            )
        )
    return (*pictures, Picture("singular-values", caption, (panel,), columns=1))
