"""DH E.3, fig. 14–17: eigenvectors of the layers of LeNet5 against those of their factors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from curvescope.figures.model import Picture
from curvescope.operators.hessian import Hessian
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.studies.dissecting_hessian import panels
from curvescope.studies.dissecting_hessian.families import CIFAR, FINISHED, Group, group
from curvescope.studies.dissecting_hessian.layer_study import patterns
from curvescope.studies.entry import Entry, Outcome, Row, Settings

FIGURES = {"fc1": 14, "fc2": 15, "conv1": 16, "conv2": 17}
DIAGONAL = 20
"""Eigenvectors for which the diagonal of the correspondence with ``E[M]`` is looked at."""

FIRST = 9
"""c − 1."""


def run(settings: Settings) -> Outcome:
    """Study the four layers of one network."""
    networks = group(settings, CIFAR)
    sizes = settings.pick(
        smoke={"fc1": 20, "fc2": 15, "conv1": 9, "conv2": 12},
        small={"fc1": 150, "fc2": 110, "conv1": 24, "conv2": 40},
        paper={"fc1": 160, "fc2": 120, "conv1": 30, "conv2": 48},
    )
    found = {layer: _layer(settings, networks, layer, k) for layer, k in sizes.items()}
    means = {layer: mean_input_share(each) for layer, each in found.items()}
    diagonals = {layer: diagonal(each) for layer, each in found.items()}
    rows = [
        *(
            Row(f"{layer}: mean of Corr(v₁, h_i), i ≤ m = {_outputs(found[layer])}", share,
                low=0.5, note=f"DH fig. {FIGURES[layer]}; range ours")
            for layer, share in means.items()
        ),
        Row(f"fc2: mean of Corr(v₁, h_i), i ≤ {FIRST}",
            float(found["fc2"]["true input"][0, :FIRST].mean()), low=0.8,
            note="DH's first version: close to 1 for these only; range ours"),
        *(
            Row(f"{layer}: mean of Corr(u_i, h_i), i ≤ {min(DIAGONAL, _outputs(found[layer]))}",
                share)
            for layer, share in diagonals.items()
        ),
        Row("that of fc2 over that of fc1", diagonals["fc2"] / diagonals["fc1"], high=1.0,
            note="DH: the diagonal of fc2 is not as clear"),
        *(
            Row(f"{layer}: likeness of true and Kronecker pattern, {side}",
                likeness(each[f"true {side}"], each[f"approximate {side}"]))
            for layer, each in found.items()
            for side in ("input", "output")
        ),
    ]  # fmt: skip
    numbers = {"corr_v1": {layer: each["true input"][0].tolist() for layer, each in found.items()}}
    pictures = tuple(_picture(layer, each) for layer, each in found.items())
    return Outcome(tuple(rows), pictures, numbers, _notes(networks))


def _layer(settings: Settings, networks: Group, layer: str, k: int) -> dict[str, Tensor]:
    """The four corners, by name, of the first network."""

    def compute() -> dict[str, Tensor]:
        settings.tell(f"{networks.family.network}: {layer}, {k} eigenpairs")
        problem = networks.problem(networks.models[0])
        factors = kronecker_factors(problem, layers=[layer])[layer]
        block = Hessian(problem).block(f"{layer}.weight")
        pairs = layer_eigenpairs(block, k, tol=1e-3, generator=settings.generator())
        guess = factors.operator().top(k)
        outputs = torch.tensor(len(factors.output_hessian))
        found = patterns(factors, {"true": pairs.vectors, "approximate": guess.vectors})
        return found | {"outputs": outputs}

    found = settings.once(f"dissecting-hessian/correspondence-{layer}", compute)
    return {name: tensor.cpu() for name, tensor in found.items()}


def _outputs(found: Mapping[str, Tensor]) -> int:
    return int(found["outputs"])


def mean_input_share(found: Mapping[str, Tensor]) -> float:
    """The mean of ``Corr(v_1, h_i)`` over the first ``m`` eigenvectors: 1 where all are on it."""
    return float(found["true input"][0, : _outputs(found)].mean())


def diagonal(found: Mapping[str, Tensor]) -> float:
    """The mean of ``Corr(u_i, h_i)``: 1 where eigenvectors go with those of ``E[M]`` in order."""
    return float(found["true output"][:DIAGONAL, :DIAGONAL].diagonal().mean())


def likeness(first: Tensor, second: Tensor) -> float:
    """The cosine of two patterns as vectors."""
    return float(torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), 0))


def _picture(layer: str, found: Mapping[str, Tensor]) -> Picture:
    m = _outputs(found)
    caption = (
        f"Eigenvectors of {layer} (m = {m}) against those of E[xxᵀ] and E[M], for the true Hessian "
        f"and for the Kronecker product (DH fig. {FIGURES[layer]})."
    )
    shown = panels.pattern_panels(layer, found, columns=3 * m if m < 30 else m + m // 4)
    return Picture(f"correspondence-{layer}", caption, shown)


def _notes(networks: Group) -> tuple[str, ...]:
    return (
        "DH prints no numbers for these figures. It says that the top eigenvectors of all layers "
        "show a strong correlation with the first eigenvector of E[xxᵀ], and that the diagonal "
        "of fc2 is not as clear as that of fc1.",
        "For fc2 DH's first version says (E.2, fig. 22) that only the top 9 eigenvectors are on "
        "the first eigenvector of E[xxᵀ]; ours too, so that its mean over all m is lower.",
        f"The first network of the family: {networks.family.network}, "
        f"{networks.family.recipe.epochs} epochs, inputs of mean zero in each channel; curvature "
        f"over {len(networks.data):,} samples. Likeness is the cosine of the two corners.",
        FINISHED,
    )


ENTRY = Entry(
    name="dissecting-hessian/correspondence",
    source="DH E.3: fig. 14, 15, 16, 17; first version, fig. 3, 10, 11, 12, 13, 22",
    shows=(
        "The first m eigenvectors of a layer go with the first eigenvector of E[xxᵀ], and with "
        "those of E[M] one by one; less so for fc2."
    ),
    cost={
        "smoke": "3 s, embedded digits, a narrow LeNet5",
        "small": "1 minute, CIFAR-10, one network, 2000 samples",
        "paper": "8 minutes on a CPU with the finished weights, one network, 50,000 samples",
    },
    run=run,
    subject={
        "smoke": "A narrow LeNet5 on embedded digits",
        "small": "LeNet5 on cifar-10",
        "paper": "LeNet5 on cifar-10",
    },
    reduced={
        "smoke": "width, data and epochs",
        "small": "curvature over 2000 images of 50,000",
        "paper": "nothing",
    },
)
