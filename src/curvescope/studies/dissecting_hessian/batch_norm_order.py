"""DH table 8 and fig. 28 once more: LeNet5 with its batch norms after the pooling.

DH's table 5 puts them before it. Max-pooling then brings a mean back into fc1's inputs, which DH's
table 8 and the first version's 0.0837 for ``|v₁·Ê[x]|`` of fc1 do not have.
"""

from __future__ import annotations

from dataclasses import replace

from curvescope.figures.model import Picture
from curvescope.studies.dissecting_hessian import batch_norm, families, panels
from curvescope.studies.dissecting_hessian.batch_norm import TABLE_8, prominence
from curvescope.studies.dissecting_hessian.families import (
    CIFAR_BN_LATE,
    Family,
    Group,
    first,
    gather,
    scaled,
)
from curvescope.studies.dissecting_hessian.layer_study import LayerStudy, layer_studies
from curvescope.studies.dissecting_hessian.overlap_cifar import LINEAR
from curvescope.studies.entry import Entry, Outcome, Row, Settings

FIRST_VERSION = 0.0837
"""|v₁·Ê[x]| of fc1 in DH's first version."""
EPOCHS = {"smoke": 5, "small": 40, "paper": 150}


def run(settings: Settings) -> Outcome:
    """Train in this order, study conv2 and the fully connected layers."""
    networks = _networks(settings)
    pairs = settings.pick(
        smoke={"conv2": 15, "fc1": 30, "fc2": 20, "fc3": 15},
        small={"conv2": 60, "fc1": 200, "fc2": 120, "fc3": 40},
        paper={"conv2": 60, "fc1": 200, "fc2": 200, "fc3": 40},
    )
    studies = layer_studies(settings, networks.family.key.split("/")[-1], networks, pairs)
    linear = [s for layer in LINEAR for s in studies[layer].structures]
    own = [s.alignment**0.5 for s in studies["fc1"].structures]
    rows = [
        *panels.autocorrelation_rows("fc1 to fc3", linear, TABLE_8),
        Row("|v₁·Ê[x]| of fc1: mean", sum(own) / len(own), paper=FIRST_VERSION),
        *(prominence(studies[layer]) for layer in pairs),
    ]
    numbers = {"layers": panels.summary(studies)}
    return Outcome(tuple(rows), (_picture(studies),), numbers, _notes(settings, networks))


def _networks(settings: Settings) -> Group:
    if settings.scale == "small":
        shorter = replace(CIFAR_BN_LATE.recipe, epochs=EPOCHS["small"])
        family = replace(
            CIFAR_BN_LATE, key=f"{CIFAR_BN_LATE.key}-{shorter.epochs}", recipe=shorter, seeds=2
        )
    else:
        family = CIFAR_BN_LATE.at(settings)
    return _gathered(settings, family)


def _gathered(settings: Settings, family: Family) -> Group:
    data = scaled(settings, family.data, family.inputs)
    size = settings.pick(smoke=1000, small=len(data), paper=len(data))
    return gather(
        settings, family, first(data, size), settings.pick(smoke=300, small=10_000, paper=size)
    )


def _picture(studies: dict[str, LayerStudy]) -> Picture:
    return Picture(
        "overlap",
        "Overlap between networks whose batch norms come after the pooling (DH fig. 28).",
        tuple(panels.between_models(study, name) for name, study in studies.items()),
        columns=2,
    )


def _notes(settings: Settings, networks: Group) -> tuple[str, ...]:
    recipe = networks.family.recipe
    return (
        "Batch norms after the pooling instead of between ReLU and pooling, as DH's table 5 has "
        "them; without learnable parameters, with their running statistics.",
        f"{len(networks.subjects)} networks, momentum {recipe.momentum}, the rate {recipe.lr}, "
        f"{recipe.epochs} epochs; curvature over {len(networks.data)} samples.",
        families.FINISHED,
    )


ENTRY = Entry(
    name="dissecting-hessian/batch-norm-order",
    source="DH F.4: fig. 28 (LeNet5-BN, the other order); table 8 (LeNet5-BN, the other order)",
    shows="With batch norms after the pooling fc1's inputs have no mean, and its overlap no peak.",
    cost={
        "smoke": "4 s, embedded digits, a narrow LeNet5-BN",
        "small": "20 minutes, of which 14 train two networks on CIFAR-10",
        "paper": "3 minutes on a GPU, of which 2 train 3 networks",
    },
    run=run,
    subject=batch_norm.ENTRY.subject,
    reduced={
        "smoke": "width, data and epochs, two networks",
        "small": f"two networks, {EPOCHS['small']} epochs with momentum 0.9 instead of 1000 "
        "without, curvature over 10,000 images",
        "paper": f"{EPOCHS['paper']} epochs with momentum 0.9 instead of 1000 without",
    },
)
