"""First version of DH, tables 6 to 8: the inputs' second moment, layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.studies.dissecting_hessian.families import (
    CIFAR_80,
    CIFAR_BN,
    CIFAR_UNIT,
    FINISHED,
    MNIST,
    Family,
    Group,
    group,
)
from curvescope.studies.entry import Entry, Outcome, Row, Settings

WITHIN = 2.0
"""A ratio agrees up to this factor with DH's, which is a mean without a range; ours."""
CLOSE = 0.005
"""So far from DH's an inner product near 1 may be; ours."""


@dataclass(frozen=True)
class Printed:
    """A network's rows: ``‖E[x]E[x]ᵀ‖/‖Σ‖`` and ``|v₁·Ê[x]|`` of its layers."""

    title: str
    family: Family
    layers: tuple[str, ...]
    ratios: tuple[float, ...]
    products: tuple[float, ...]
    tables: str
    batch_norm: bool = False


_FIVE = ("conv1", "conv2", "fc1", "fc2", "fc3")
NETWORKS = (
    Printed(
        "LeNet5", CIFAR_UNIT, _FIVE, (5.474, 7.647, 6.885, 6.136, 5.707),
        (0.9999, 0.9994, 0.9991, 0.9991, 0.9988), "tables 6, 7",
    ),
    Printed(
        "LeNet5-(fc1-80)", CIFAR_80, _FIVE, (5.474, 7.072, 6.895, 7.135, 5.224),
        (0.9999, 0.9991, 0.9995, 0.9995, 0.9978), "tables 6, 7",
    ),
    Printed(
        "F-200^2", MNIST, ("fc1", "fc2", "fc3"), (25.142, 13.991, 10.237),
        (0.9999, 0.9999, 0.9998), "tables 6, 7",
    ),
    Printed(
        "LeNet5-BN", CIFAR_BN, _FIVE, (0.020, 0.045, 0.016, 0.019, 0.013),
        (0.9675, 0.5179, 0.0837, 0.1805, 0.2107), "table 8", batch_norm=True,
    ),
)  # fmt: skip


def run(settings: Settings) -> Outcome:
    """Both numbers for all layers of the networks that have finished weights."""
    chosen = settings.pick(smoke=NETWORKS[2:], small=NETWORKS, paper=NETWORKS)
    rows: list[Row] = []
    panels: list[Panel] = []
    numbers: dict[str, dict[str, list[list[float]]]] = {}
    counts = []
    for printed in chosen:
        networks = group(settings, printed.family)
        found = _structures(settings, printed, networks)
        rows += _rows(printed, found)
        panels.append(_panel(printed, found))
        numbers[printed.title] = {name: each.tolist() for name, each in found.items()}
        recipe = networks.family.recipe
        counts.append(f"{printed.title} {len(networks.subjects)} ({recipe.epochs} epochs)")
    caption = (
        "‖E[x]E[x]ᵀ‖/‖Σ‖ of the inputs of each layer, beside DH's first version (tables 6, 8). "
        "Above 1 the mean input dominates; with batch norm it does not."
    )
    notes = (
        f"Means over networks: {', '.join(counts)}. Pixels in [−1, 1] for F-200², in [0, 1] for "
        "LeNet5, of mean zero with batch norm, as the numbers of the first layers tell.",
        f"DH prints means without ranges: a ratio agrees within a factor {WITHIN:g}, an inner "
        f"product near 1 within {CLOSE:g}. With batch norm DH says that neither is large but in "
        "the first layer: there a ratio agrees below 1.",
        "Of tables 6 and 7 are left out LeNet5-(conv2-25), F-200²-100, VGG11 and the T networks, "
        "of table 8 F-200²-BN (entry autocorrelation has it).",
        FINISHED,
    )
    picture = Picture("ratios", caption, tuple(panels))
    return Outcome(tuple(rows), (picture,), numbers, notes)


def _structures(settings: Settings, printed: Printed, networks: Group) -> dict[str, Tensor]:
    """``ratio`` and ``product``: ``[networks, layers]`` each."""

    def compute() -> dict[str, Tensor]:
        settings.tell(f"inputs of all layers of {printed.title}")
        found = []
        for model in networks.models:
            factors = kronecker_factors(networks.problem(model), layers=list(printed.layers))
            own = [autocorrelation_structure(factors[layer]) for layer in printed.layers]
            found.append([[s.dominance, math.sqrt(s.alignment)] for s in own])
        both = torch.tensor(found, dtype=torch.float64)
        return {"ratio": both[..., 0], "product": both[..., 1]}

    key = f"dissecting-hessian/per-layer-{printed.title.replace('^', 'x')}"
    return {name: each.cpu() for name, each in settings.once(key, compute).items()}


def _rows(printed: Printed, found: dict[str, Tensor]) -> list[Row]:
    rows = []
    ratios, products = found["ratio"].mean(0).tolist(), found["product"].mean(0).tolist()
    for place, layer in enumerate(printed.layers):
        theirs, known = printed.ratios[place], printed.products[place]
        low, high = (None, 1.0) if printed.batch_norm else (theirs / WITHIN, theirs * WITHIN)
        where = f"{printed.title}, {layer}"
        rows += [
            Row(f"‖E[x]E[x]ᵀ‖/‖Σ‖, {where}", ratios[place], theirs, low, high, "range ours"),
            Row(
                f"|v₁·Ê[x]|, {where}",
                products[place],
                known,
                None if printed.batch_norm else round(known - CLOSE, 4),
                note="" if printed.batch_norm else "range ours",
            ),
        ]
    return rows


def _panel(printed: Printed, found: dict[str, Tensor]) -> Panel:
    places = list(range(1, len(printed.layers) + 1))
    return Panel(
        title=f"{printed.title} ({printed.tables})",
        xlabel="layer",
        ylabel="‖E[x]E[x]ᵀ‖/‖Σ‖",
        curves=(
            Curve.of("ours", places, found["ratio"].mean(0), color=0),
            Curve.of("DH", places, printed.ratios, kind="points", color=1),
        ),
        yscale="log",
    )


ENTRY = Entry(
    name="dissecting-hessian/per-layer",
    source="DH, first version: tables 6, 7, 8",
    shows="In every layer the mean input dominates the covariance, and is the first eigenvector of "
    "E[xxᵀ]; with batch norm it is not.",
    cost={
        "smoke": "2 s, embedded digits, small networks",
        "small": "1 minute, MNIST and CIFAR-10, two networks of each kind, 2000 samples",
        "paper": "10 minutes on a CPU with the finished weights",
    },
    run=run,
    subject={
        "smoke": "Inputs of each layer, small networks on embedded digits",
        "small": "Inputs of each layer, mnist and cifar-10",
        "paper": "Inputs of each layer, mnist and cifar-10",
    },
    reduced={
        "smoke": "width, data and epochs, two networks of each kind",
        "small": "two networks of each kind, 2000 samples; 3 epochs where the work folder has no "
        "finished weights",
        "paper": "4 of 14 networks; LeNet5-BN with 150 epochs and momentum instead of 1000 without",
    },
)
