"""DH E.1, F.4, tables 6, 7 and 8: the inputs' second moment in further networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.autocorrelation import AutocorrelationStructure, autocorrelation_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.dissecting_hessian import panels
from curvescope.studies.dissecting_hessian.families import (
    CIFAR_80,
    CIFAR_150,
    FINISHED,
    Group,
    group,
)
from curvescope.studies.dissecting_hessian.plain_networks import QUICK, accuracy, plain_networks
from curvescope.studies.entry import Entry, Outcome, Row, Settings

SHOWN = 20
"""Eigenvalues that are drawn."""


@dataclass(frozen=True)
class Printed:
    """A row of DH's tables: mean, smallest, largest of the alignment, then of the ratio."""

    table: int
    network: str
    data: str
    alignment: tuple[float, float, float]
    ratio: tuple[float, float, float]

    @property
    def title(self) -> str:
        """Table, network and data."""
        return f"table {self.table}, {self.network} on {self.data}"

    @property
    def batch_norm(self) -> bool:
        """Whether the network has batch norms."""
        return self.network.endswith("-BN")


ROWS = (
    Printed(6, "F-600^2", "mnist", (0.999, 0.999, 0.999), (12.00, 11.42, 13.00)),
    Printed(6, "F-600^4", "mnist", (1.000, 0.999, 1.000), (17.81, 7.33, 28.00)),
    Printed(6, "F-600^8", "mnist", (0.991, 0.965, 1.000), (6.63, 2.28, 11.15)),
    Printed(6, "F-600^2", "cifar-10", (0.999, 0.998, 1.000), (9.24, 4.74, 13.74)),
    Printed(6, "F-1500^3", "cifar-10", (0.999, 0.997, 1.000), (13.27, 6.10, 18.41)),
    Printed(6, "LeNet5-(fc1-80)", "cifar-10", (0.998, 0.996, 0.999), (7.80, 6.77, 11.01)),
    Printed(7, "LeNet5-(fc1-80)", "cifar-10", (0.998, 0.998, 0.999), (12.36, 9.53, 13.36)),
    Printed(6, "LeNet5-(fc1-150)", "cifar-10", (0.998, 0.992, 0.999), (7.35, 5.34, 9.62)),
    Printed(7, "LeNet5-(fc1-150)", "cifar-10", (0.999, 0.998, 0.999), (12.86, 7.65, 16.34)),
    Printed(8, "F-200^2-BN", "mnist", (0.062, 0.001, 0.260), (1.16, 1.04, 1.30)),
    Printed(8, "F-600^2-BN", "mnist", (0.026, 0.000, 0.063), (1.13, 1.02, 1.26)),
    Printed(8, "F-600^4-BN", "mnist", (0.027, 0.000, 0.146), (1.11, 1.03, 1.19)),
)
WIDTHS = {"LeNet5-(fc1-80)": CIFAR_80, "LeNet5-(fc1-150)": CIFAR_150}


def run(settings: Settings) -> Outcome:
    """Train what is not there and look at the inputs of all layers but the first."""
    chosen = settings.pick(smoke=(ROWS[1], ROWS[9]), small=ROWS, paper=ROWS)
    rows: list[Row] = []
    shown: dict[bool, list[Curve]] = {False: [], True: []}
    numbers: dict[str, dict[str, Any]] = {}
    for printed in chosen:
        networks = _networks(settings, printed)
        structures = _structures(settings, printed, networks)
        name = printed.title
        rows += panels.autocorrelation_rows(
            name, structures, panels.Printed(printed.alignment, printed.ratio)
        )
        numbers[name] = {
            "accuracy": accuracy(networks),
            "alignment": [s.alignment for s in structures],
            "spectral_ratio": [s.spectral_ratio for s in structures],
        }
        if printed.table != 7:
            gamma = structures[0].eigenvalues
            label = f"{printed.network}, {printed.data}"
            curve = Curve.of(label, None, gamma / gamma[0])
            shown[printed.batch_norm].append(curve)
    rows.append(_separation(chosen, numbers))
    least = min(float(own["accuracy"]) for own in numbers.values())
    return Outcome(tuple(rows), (_picture(shown),), numbers, _notes(settings, least))


def _separation(chosen: Sequence[Printed], numbers: Mapping[str, Mapping[str, Any]]) -> Row:
    """The least mean ratio without batch norm over the largest with it, ours and DH's."""
    ours: dict[bool, list[float]] = {False: [], True: []}
    theirs: dict[bool, list[float]] = {False: [], True: []}
    for printed in chosen:
        found = numbers[printed.title]["spectral_ratio"]
        ours[printed.batch_norm].append(sum(found) / len(found))
        theirs[printed.batch_norm].append(printed.ratio[0])
    return Row(
        "least mean λ₁/λ₂ without batch norm over the largest with it",
        min(ours[False]) / max(ours[True]),
        round(min(theirs[False]) / max(theirs[True]), 2),
        low=1.0,
        note="range ours",
    )


def _networks(settings: Settings, printed: Printed) -> Group:
    family = WIDTHS.get(printed.network)
    if family is not None:
        return group(settings, family)
    seeds = 3 if printed.batch_norm else 5
    return plain_networks(settings, printed.network, printed.data, seeds=seeds)


def _structures(
    settings: Settings, printed: Printed, networks: Group
) -> list[AutocorrelationStructure]:
    """Of the table's layers of all networks: all of the kind but the network's first layer."""
    names = [name.split(".")[0] for name, p in networks.models[0].named_parameters() if p.ndim > 1]
    start = "conv" if printed.table == 7 else "fc"
    layers = [name for name in names[1:] if name.startswith(start)]

    def compute() -> dict[str, Tensor]:
        settings.tell(f"{printed.network}, {printed.data}: inputs of {', '.join(layers)}")
        found = []
        for model in networks.models:
            factors = kronecker_factors(networks.problem(model), layers=layers)
            found += [autocorrelation_structure(factors[layer]) for layer in layers]
        numbers = [[s.alignment, s.spectral_ratio, s.dominance] for s in found]
        size = min(SHOWN, *(len(s.eigenvalues) for s in found))
        return {
            "structure": torch.tensor(numbers, dtype=torch.float64),
            "eigenvalues": torch.stack([s.eigenvalues[:size] for s in found]).double(),
        }

    key = f"inputs-{networks.family.network.replace('^', 'x')}-{networks.family.data}-{start}"
    kept = settings.once(f"dissecting-hessian/{key}", compute)
    return [
        AutocorrelationStructure("", alignment, ratio, dominance, eigenvalues)
        for (alignment, ratio, dominance), eigenvalues in zip(
            kept["structure"].tolist(), kept["eigenvalues"].cpu(), strict=True
        )
    ]


def _picture(shown: dict[bool, list[Curve]]) -> Picture:
    titles = {False: "without batch norm", True: "with batch norm"}
    shown_panels = tuple(
        Panel(
            title=titles[kind],
            xlabel="index",
            ylabel="eigenvalue of E[xxᵀ] over the largest",
            curves=tuple(curves),
            yscale="log",
        )
        for kind, curves in shown.items()
        if curves
    )
    caption = (
        "Without batch norm the inputs' second moment is close to rank one; with it there is no "
        "first eigenvalue that stands out (DH tables 6 and 8; first version, fig. 7). The first "
        "layer of each network that the tables count."
    )
    return Picture("spectra", caption, shown_panels)


def _notes(settings: Settings, least: float) -> tuple[str, ...]:
    notes: tuple[str, ...] = (
        "Rows of the tables whose networks no other entry has. Means over all layers but the first "
        "of all networks, beside DH's mean and range over its own.",
        f"Every network is right on at least {least:.0%} of the samples that were looked at.",
        "Not here: LeNet5-(fc1-100), which lies between the two widths. VGG11 and ResNet18 are in "
        "overlap-vgg and overlap-resnet, F-200², LeNet5 and LeNet5-BN in overlap-mnist, "
        "overlap-cifar and batch-norm.",
    )
    if settings.scale == "small":
        notes += (f"{QUICK} The two LeNet5 are finished ones where the work folder has them.",)
    return (*notes, FINISHED)


ENTRY = Entry(
    name="dissecting-hessian/autocorrelation",
    source="DH E.1, F.4: tables 6 (others), 7 (others), 8 (others); first version, fig. 7",
    shows="E[xxᵀ] is close to rank one in all networks, and is not with batch norm.",
    cost={
        "smoke": "2 s, embedded digits, networks of width 16",
        "small": "5 minutes, 5000 images each of MNIST and CIFAR-10, 8 networks to train",
        "paper": "a GPU; 34 networks to train for 1000 epochs",
    },
    run=run,
    subject={
        "smoke": "Inputs of the first counted layer: narrow networks on embedded digits",
        "small": "Inputs of the first counted layer",
        "paper": "Inputs of the first counted layer",
    },
    reduced={
        "smoke": "width, data and epochs, one network each",
        "small": (
            "one network of each kind instead of five (three with batch norm), 5000 images, 10 "
            "epochs with momentum instead of 1000 without; LeNet5-(fc1-100) is left out"
        ),
        "paper": "LeNet5-(fc1-100) is left out; three networks of the other two widths, not five",
    },
)
