"""DH fig. 2a/b, 4, 24 and table 6's first row: F-200² on MNIST."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.figures.model import Picture
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.dissecting_hessian import panels
from curvescope.studies.dissecting_hessian.families import (
    FINISHED,
    MNIST,
    MNIST_RANDOM,
    Group,
    group,
)
from curvescope.studies.dissecting_hessian.layer_study import (
    LayerStudy,
    layer_studies,
    layer_study,
)
from curvescope.studies.entry import Entry, Outcome, Row, Settings

TABLE_6 = panels.Printed(alignment=(1.0, 1.0, 1.0), ratio=(12.29, 9.65, 16.16))
CLASSES = 10


def run(settings: Settings) -> Outcome:
    """Study all layers at the minimum, and fc1 at the start and with random labels."""
    networks = group(settings, MNIST)
    layers = settings.pick(
        smoke={"fc1": 12, "fc2": 40, "fc3": 15},
        small={"fc1": 30, "fc2": 60, "fc3": 30},
        paper={"fc1": 60, "fc2": 240, "fc3": 60},
    )
    studies = layer_studies(settings, "mnist", networks, layers)
    random = group(settings, MNIST_RANDOM)
    situations = _situations(settings, networks, random, studies["fc1"])
    outputs = _outputs(settings, networks, random)
    gaps = {
        layer: {name: tau[:, CLASSES - 2] / tau[:, CLASSES - 1] for name, tau in found.items()}
        for layer, found in outputs.items()
    }
    later = [s for layer in ("fc2", "fc3") for s in studies[layer].structures]
    fc2 = studies["fc2"].between.mean
    early = int(fc2[: 3 * CLASSES].argmax()) + 1
    rows = [
        *panels.autocorrelation_rows("fc2 and fc3", later, TABLE_6),
        Row("fc1: overlap of true and Kronecker top 9", _at(studies["fc1"].overlap, 9)),
        Row("fc2: overlap of true and Kronecker top 9", _at(studies["fc2"].overlap, 9)),
        Row(
            "fc2: dimension of the early peak between models",
            early,
            paper=10,
            low=8,
            high=12,
            note=studies["fc2"].verdict,
        ),
        Row("fc2: overlap between models at 9", float(fc2[8]), paper=0.012),
        *(
            Row(f"τ₉/τ₁₀ of E[M], {layer}, {name}", float(values.mean()))
            for layer in ("fc1", "fc2")
            for name, values in gaps[layer].items()
        ),
    ]
    pictures = (
        _figure_2(studies),
        _figure_4(situations, outputs["fc2"]),
        _figure_24(studies["fc2"]),
    )
    numbers = {
        "layers": panels.summary(studies),
        "gaps": {
            layer: {name: values.tolist() for name, values in found.items()}
            for layer, found in gaps.items()
        },
    }
    return Outcome(tuple(rows), pictures, numbers, _notes(settings, networks, random))


def _situations(
    settings: Settings, networks: Group, random: Group, minimum: LayerStudy
) -> dict[str, LayerStudy]:
    k = settings.pick(smoke=12, small=20, paper=40)
    start = layer_study(settings, "mnist-start", networks, "fc1", k, models=networks.starts())
    return {
        "initialization": start,
        "minimum": minimum,
        "random labels": layer_study(settings, "mnist-random", random, "fc1", k),
    }


def _outputs(settings: Settings, networks: Group, random: Group) -> dict[str, dict[str, Tensor]]:
    """The largest eigenvalues of ``E[M]`` of fc1 and fc2, ``[networks, 30]`` at most."""
    situations = {
        "initialization": (networks, networks.starts()),
        "minimum": (networks, networks.models),
        "random labels": (random, random.models),
    }

    def compute() -> dict[str, Tensor]:
        settings.tell("spectra of the output Hessians")
        found: dict[str, list[Tensor]] = {}
        for name, (own, models) in situations.items():
            for model in models:
                factors = kronecker_factors(own.problem(model), layers=("fc1", "fc2"))
                for layer, each in factors.items():
                    tau = torch.linalg.eigvalsh(each.output_hessian.double()).flip(0)[:30]
                    found.setdefault(f"{layer} {name}", []).append(tau)
        return {key: torch.stack(values) for key, values in found.items()}

    tensors = settings.once("dissecting-hessian/mnist-outputs", compute)
    return {
        layer: {name: tensors[f"{layer} {name}"].cpu() for name in situations}
        for layer in ("fc1", "fc2")
    }


def _at(curves: Tensor, k: int) -> float:
    return float(curves[:, k - 1].mean())


def _figure_2(studies: dict[str, LayerStudy]) -> Picture:
    shown = [p for name in ("fc1", "fc2", "fc3") for p in panels.comparison(studies[name], name)]
    caption = (
        "Top eigenvalues and eigenspaces of the layers of F-200², true and by the product; "
        "mean and standard deviation over the networks (DH fig. 2a, 2b)."
    )
    return Picture("layers", caption, tuple(shown))


def _figure_4(situations: dict[str, LayerStudy], outputs: dict[str, Tensor]) -> Picture:
    first = [
        panels.spectra(f"fc1, {name}", study.outputs[0], study.true[0])
        for name, study in situations.items()
    ]
    second = [panels.spectra(f"fc2, {name}", tau[0]) for name, tau in outputs.items()]
    caption = (
        "The spectrum of a layer's Hessian follows that of its output Hessian, at initialization, "
        "at the minimum and with random labels; fc2's output Hessian has its gap after c − 1 at "
        "initialization and at the minimum only (DH fig. 4). First network."
    )
    return Picture("situations", caption, (*first, *second), columns=3)


def _figure_24(study: LayerStudy) -> Picture:
    spectrum = panels.factor_spectra(study)
    true, _, approximate, _ = panels.correspondences(study, rows=20, columns=20)
    caption = (
        "fc2 of F-200²: τ₁₀ γ₁ < τ₁ γ₂, so that only the first c − 1 eigenvectors are built on the "
        "mean input, and the overlap of independent networks peaks early (DH fig. 24)."
    )
    overlaps = panels.between_models(study, "fc2: overlap between models")
    return Picture("early-peak", caption, (overlaps, spectrum, true, approximate))


def _notes(settings: Settings, networks: Group, random: Group) -> tuple[str, ...]:
    notes = (
        "Inputs are pixels in [−1, 1], as the first version's number for fc1 shows; with inputs of "
        "mean zero λ₁/λ₂ is lower (entry input-scaling).",
        f"{len(networks.subjects)} networks with {networks.family.recipe.epochs} epochs, curvature "
        f"over {len(networks.data)} samples.",
        f"Random labels: {len(random.subjects)} networks, momentum {random.family.recipe.momentum} "
        f"and the rate {random.family.recipe.lr}, {random.family.recipe.epochs} epochs.",
    )
    if settings.scale != "paper":
        return notes
    return (
        *notes,
        "With random labels training was not finished: the networks are right on 86 % of their "
        "training data, at a loss of 0.42.",
        "DH does not name the layer of fig. 4. After training with true labels fc2 has a clear gap "
        "after c − 1 eigenvalues, fc1 hardly one.",
        FINISHED,
    )


ENTRY = Entry(
    name="dissecting-hessian/overlap-mnist",
    source=(
        "DH fig. 2a, 2b, 4, 12 (F-200²), 24; table 6 (F-200²); "
        "first version, fig. 2, 4, 9 (fc2), 19"
    ),
    shows=(
        "The Kronecker product has the layer's top eigenvalues and eigenspace; inputs are close to "
        "rank one; fc2 has an early peak of overlap near c − 1."
    ),
    cost={
        "smoke": "4 s, embedded digits, networks of width 24",
        "small": "3 minutes, MNIST, two networks, 2000 samples",
        "paper": "5 minutes on a GPU, of which 4 train 10 networks",
    },
    run=run,
    subject={
        "smoke": "F-24^2 on embedded digits",
        "small": "F-200^2 on mnist",
        "paper": "F-200^2 on mnist",
    },
    reduced={
        "smoke": "width 24 instead of 200, 1000 embedded digits, 5 epochs, two networks",
        "small": (
            "two networks instead of five, curvature over 2000 digits; 3 epochs instead of 1000 "
            "where the work folder has no finished weights"
        ),
        "paper": (
            "with random labels 300 epochs with momentum 0.9 instead of 1000 without, which is not "
            "a minimum; the rest is as in DH"
        ),
    },
)
