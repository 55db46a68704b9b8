"""Further networks of DH's tables and of its fig. 8, which several entries look at."""

from __future__ import annotations

import re

from curvescope.studies.dissecting_hessian.families import (
    PLACE,
    Family,
    Group,
    Inputs,
    first,
    gather,
    scaled,
)
from curvescope.studies.entry import Settings
from curvescope.training import Recipe, evaluate

NARROW = "LeNet5-(conv1-3)-(conv2-5)-(fc1-16)-(fc2-12)"
QUICK = (
    "Differs from DH: one network of each kind instead of 5 (3 with batch norm), 5000 images, "
    "momentum 0.9 and 10 epochs instead of 1000 at 0.01 without momentum, so that the networks are "
    "not at a minimum."
)


def miniature(network: str) -> str:
    """What stands for a network at the smoke scale.

    >>> miniature("F-600^4-BN")
    'F-16^4-BN'
    """
    return re.sub(r"^F-\d+", "F-16", network) if network.startswith("F-") else NARROW


def plain_networks(settings: Settings, network: str, data: str, *, seeds: int = 5) -> Group:
    """Networks of one kind by DH's schedule, or quickly; Xavier's initial weights (DH D.3).

    Inputs are pixels in [−1, 1] for digits and of mean zero in each channel for images, as for the
    other entries.
    """
    inputs: Inputs = "symmetric" if data.startswith("mnist") else "channel"
    if settings.scale == "smoke":
        network, data = miniature(network), "mnist-6k-R" if data.endswith("-R") else "mnist-6k"
    found = scaled(settings, data, inputs)
    found = first(found, settings.pick(smoke=300, small=5000, paper=len(found)))
    quick = Recipe(
        seed=0, epochs=settings.pick(smoke=3, small=10, paper=1), lr=0.01, momentum=0.9,
        batch_size=32, schedule="linear",
    )  # fmt: skip
    plain = Recipe(seed=0, epochs=1000, lr=0.01)
    family = Family(
        f"{PLACE}/{network.replace('^', 'x')}-{data}-{settings.scale}",
        network,
        data,
        inputs,
        settings.pick(smoke=quick, small=quick, paper=plain),
        settings.pick(smoke=1, small=1, paper=seeds),
        "xavier",
    )
    return gather(settings, family, found, settings.pick(smoke=100, small=2000, paper=len(found)))


def accuracy(networks: Group) -> float:
    """The mean share of right answers on the samples of the curvature."""
    right = [evaluate(model, networks.data).accuracy for model in networks.models]
    return sum(right) / len(right)
