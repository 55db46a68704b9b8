"""How DH's inputs were scaled, and what its tables 6, 7 and 10 are for other scalings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from curvescope.figures.model import Picture
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.dissecting_hessian import panels
from curvescope.studies.dissecting_hessian.families import (
    CIFAR,
    FINISHED,
    MINIATURE,
    MNIST_CENTERED,
    Inputs,
    first,
    group,
    scaled,
)
from curvescope.studies.dissecting_hessian.layer_study import layer_studies
from curvescope.studies.dissecting_hessian.overlap_cifar import (
    LINEAR,
    TABLE_6,
    TABLE_7,
    TABLE_10,
    output_spaces,
    pairs_of_layers,
    peak_row,
)
from curvescope.studies.dissecting_hessian.overlap_mnist import TABLE_6 as TABLE_6_DIGITS
from curvescope.studies.entry import Entry, Outcome, Row, Settings

PRINTED: dict[tuple[str, str, Inputs], float | None] = {
    ("mnist", "F-200^2", "symmetric"): 25.142,
    ("mnist", "F-200^2", "unit"): 6.857,
    ("mnist", "F-200^2", "channel"): None,
    ("cifar-10", "LeNet5", "unit"): 5.474,
    ("cifar-10", "LeNet5", "symmetric"): None,
    ("cifar-10", "LeNet5", "channel"): 0.020,
}
"""``‖E[x]E[x]ᵀ‖/‖Σ_x‖`` of the first layer, tables 6 and 8 of DH's first version.

There 25.142 belongs to F-200² and F-200²-100, 6.857 to the T networks, 5.474 to LeNet5, its
variants and VGG11, 0.020 to LeNet5-BN.
"""
WORDS: dict[Inputs, str] = {"unit": "[0, 1]", "symmetric": "[−1, 1]", "channel": "mean 0"}


def run(settings: Settings) -> Outcome:
    """The first layer under each scaling, then trained networks."""
    rows = []
    for (name, net, inputs), printed in PRINTED.items():
        ours = _first_layer(settings, name, net, inputs)
        rounding = 0.001  # three digits after the point
        low, high = (
            (None, None)
            if printed is None
            else (round(printed - rounding, 4), round(printed + rounding, 4))
        )
        what = f"‖E[x]E[x]ᵀ‖/‖Σ‖, first layer, {name}, pixels in {WORDS[inputs]}"
        rows.append(Row(what.replace("in mean", "of mean"), ours, printed, low, high))
    rows += _starts(settings)
    more, numbers, pictures = _trained(settings)
    return Outcome(tuple(rows + more), pictures, numbers, NOTES)


def _first_layer(settings: Settings, name: str, net: str, inputs: Inputs) -> float:
    """``‖E[x]E[x]ᵀ‖/‖Σ_x‖`` of the inputs of the first layer: the weights do not matter."""

    def compute() -> dict[str, Tensor]:
        settings.tell(f"first layer of {net}, {WORDS[inputs]}")
        smoke = settings.scale == "smoke"
        data = scaled(settings, "mnist-6k" if smoke else name, inputs)
        data = first(data, settings.pick(smoke=300, small=5000, paper=len(data)))
        model = network(MINIATURE[net] if smoke else net, data.input_shape, data.classes)
        problem = Problem(model.to(settings.device), data.batches(2000))
        layer = next(name for name, _ in model.named_parameters()).split(".")[0]
        structure = autocorrelation_structure(kronecker_factors(problem, layers=[layer])[layer])
        return {"dominance": torch.tensor(structure.dominance, dtype=torch.float64)}

    key = f"dissecting-hessian/inputs-{name}-{inputs}"
    return float(settings.once(key, compute)["dominance"])


def _starts(settings: Settings) -> list[Row]:
    """``λ₁/λ₂`` of conv2's inputs before training, three seeds for each scaling."""
    rows = []
    for inputs, words in WORDS.items():

        def compute(inputs: Inputs = inputs) -> dict[str, Tensor]:
            settings.tell(f"conv2 before training, {WORDS[inputs]}")
            smoke = settings.scale == "smoke"
            data = scaled(settings, "mnist-6k" if smoke else "cifar-10", inputs)
            data = first(data, settings.pick(smoke=200, small=1500, paper=1500))
            ratios = []
            for seed in range(3):
                generator = torch.Generator().manual_seed(seed)
                name = MINIATURE["LeNet5"] if smoke else "LeNet5"
                model = network(name, data.input_shape, data.classes, generator=generator)
                problem = Problem(model.to(settings.device), data.batches(500))
                factors = kronecker_factors(problem, layers=["conv2"])["conv2"]
                ratios.append(autocorrelation_structure(factors).spectral_ratio)
            return {"ratio": torch.tensor(ratios, dtype=torch.float64)}

        ratio = settings.once(f"dissecting-hessian/start-{inputs}", compute)["ratio"].cpu()
        note = f"{float(ratio.min()):.3g} … {float(ratio.max()):.3g} over 3 seeds"
        what = f"λ₁/λ₂ of conv2 before training, pixels in {words}".replace("in mean", "of mean")
        rows.append(Row(what, float(ratio.mean()), note=note))
    return rows


def _trained(settings: Settings) -> tuple[list[Row], dict[str, Any], tuple[Picture, ...]]:
    digits = group(settings, MNIST_CENTERED)
    k = settings.pick(smoke=12, small=20, paper=60)
    mnist = layer_studies(settings, "mnist-centered", digits, {"fc2": k, "fc3": k})
    images = group(settings, CIFAR)
    cifar = layer_studies(settings, "lenet5", images, pairs_of_layers(settings))
    spaces = output_spaces(settings, "lenet5", images)
    later = [s for study in mnist.values() for s in study.structures]
    linear = [s for layer in LINEAR for s in cifar[layer].structures]
    rows = [
        *panels.autocorrelation_rows("F-200², mean 0", later, TABLE_6_DIGITS),
        *panels.autocorrelation_rows("LeNet5 fc, mean 0", linear, TABLE_6),
        *panels.autocorrelation_rows("LeNet5 conv2, mean 0", cifar["conv2"].structures, TABLE_7),
        *(
            Row(f"overlap with R(S)∖{{S·1}}, {layer}, mean 0", float(spaces[layer].mean()), paper)
            for layer, paper in TABLE_10.items()
        ),
        peak_row(cifar["fc1"], 5),
        peak_row(cifar["conv2"], 2),
    ]
    shown = tuple(panels.between_models(study, name) for name, study in cifar.items())
    caption = "Overlap between LeNet5 trained on pixels of mean 0."
    numbers = {"mnist": panels.summary(mnist), "cifar": panels.summary(cifar)}
    return rows, numbers, (Picture("overlap", caption, shown),)


NOTES = (
    "The first version of DH prints a number that depends on the pixels alone, and so tells how "
    "they were scaled: F-200² had [−1, 1], LeNet5 and its variants [0, 1], the networks of the "
    "PAC-Bayes bounds [0, 1], LeNet5-BN mean zero.",
    "F-200² with inputs of mean zero is that of reproductions/training, with DH's schedule of 1000 "
    "epochs.",
    "LeNet5 with pixels of mean zero has DH's schedule, as those with [0, 1] (overlap-cifar and "
    "per-layer): its rows beside DH's tables 6, 7 and 10 tell what the scaling changes.",
    FINISHED,
)

ENTRY = Entry(
    name="dissecting-hessian/input-scaling",
    source=(
        "DH tables 6 (LeNet5 and F-200²), 7 (LeNet5), 10 (LeNet5); first version, "
        "tables 6 (first layers), 8 (first layers)"
    ),
    shows="Which scaling of the pixels DH's numbers belong to, and what others give.",
    cost={
        "smoke": "5 s, embedded digits, narrow networks",
        "small": "6 minutes, MNIST and CIFAR-10, two networks of each kind, 2000 samples",
        "paper": "4 minutes on a GPU, of which 3 train networks",
    },
    run=run,
    subject={
        "smoke": "A narrow LeNet5 on embedded digits, pixels of mean 0",
        "small": "LeNet5 on cifar-10, pixels of mean 0",
        "paper": "LeNet5 on cifar-10, pixels of mean 0",
    },
    reduced={
        "smoke": "width, data and epochs, two networks",
        "small": "two networks instead of five, curvature over 2000 images",
        "paper": "nothing",
    },
)
