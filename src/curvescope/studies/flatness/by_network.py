"""FF fig. 4 to 7, PP fig. 1: weight decay and sharpness of the three networks of CIFAR-100.

``practical-bound/tables`` reads the trainings and spectra of these entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from curvescope.studies.entry import Entry, Outcome, Row, Scale
from curvescope.studies.flatness import solutions
from curvescope.studies.flatness.weight_decay import FASTER, Printed, Study, run

CNN = Study(
    name="cnn",
    title="All-CNN-C",
    networks={"smoke": "LeNet5", "small": "All-CNN-C", "paper": "All-CNN-C"},
    rate=0.03,
    epochs={"smoke": 6, "small": 40, "paper": 60},
    modes=("eval",),
    printed=Printed(
        (32.40, 32.50, 31.14),
        (2.506, 2.463, 2.144),
        (1.82e-3, 2.20e-3, 4.62e-3),
        (1.35e-2, 1.68e-2, 1.17e-1),
        (49.0, 66.0, 130.0),
        (45.2, 35.8, 23.0),
    ),
    gain=0.96,
    init="xavier",
)
PRERESNET = Study(
    name="preresnet",
    title="PreResNet-164",
    networks={"smoke": "PreResNet-11", "small": "PreResNet-11", "paper": "PreResNet-164"},
    rate=0.1,
    epochs={"smoke": 4, "small": 30, "paper": 40},
    modes=("train", "eval"),
    printed=Printed(
        (27.2, 24.4, 23.11),
        (2.24, 1.16, 0.92),
        (5.5e-5, 6.7e-4, 2.1e-3),
        (1.1e-5, 6e-4, 3.1e-3),
        (2.52, 11.49, 23.03),
        (160.0, 36.9, 22.06),
    ),
    gain=4.24,
)
WIDE = Study(
    name="wide-resnet",
    title="WideResNet-28x10",
    networks={
        "smoke": "WideResNet-10x1",
        "small": "WideResNet-10x2",
        "paper": "WideResNet-28x10",
    },
    rate=0.1,
    epochs={"smoke": 4, "small": 30, "paper": 30},
    modes=("train", "eval"),
    printed=Printed(
        (24.92, 20.68, 19.6),
        (2.08, 0.85, 0.79),
        (9.4e-7, 6.7e-5, 1.1e-4),
        (2.3e-7, 1.3e-4, 3e-4),
        (1.69, 39.13, 40.0),
        (101.0, 21.9, 15.8),
    ),
    gain=5.4,
    in_eval=(1000.0, 4.9e-5 / 9.8e-12),
)

STUDIES = (CNN, PRERESNET, WIDE)
_EPOCHS = 300
"""FF's and PP's."""


def checks(study: Study, outcome: Outcome) -> Iterator[Row]:
    """PP: all Hessian based measures grow with weight decay; the spectral norm does in all."""
    for mode in study.modes:
        where = f", {mode} mode" if len(study.modes) > 1 else ""
        first = mode == study.modes[0]
        yield solutions.grows(
            outcome, f"λ_max{where}", paper=study.printed.largest if first else ()
        )
        yield solutions.grows(
            outcome, f"tr H² / P{where}", paper=study.printed.mean_square if first else ()
        )
    yield Row(
        "‖w‖: largest ratio from one weight decay to the next",
        max(solutions.ratios(outcome.values("‖w‖, weight decay"))),
        high=1.0,
        note="PP: sharpness increases where the weight norm decreases",
    )


def subject(study: Study) -> dict[Scale, str]:
    """What an entry looks at."""
    return {
        "smoke": f"{study.networks['smoke']} on embedded digits",
        "small": f"{study.networks['small']} on cifar-10",
        "paper": f"{study.networks['paper']} on cifar-100",
    }


def reduced(study: Study) -> dict[Scale, str]:
    """What is smaller than FF's and PP's."""
    same = study.networks["small"] == study.title
    network = "" if same else f"{study.networks['small']} instead of {study.title}, "
    faster = f"weight decays {FASTER} times theirs"
    return {
        "smoke": "network, data and epochs",
        "small": f"{network}640 images of CIFAR-10 at a third of their resolution instead of "
        f"50,000 of CIFAR-100, {study.epochs['small']} epochs instead of {_EPOCHS}, {faster}, no "
        "augmentation; curvature of 128 images, 25 Lanczos steps instead of 100",
        "paper": f"2,000 images of CIFAR-100 instead of 50,000, {study.epochs['paper']} epochs "
        f"instead of {_EPOCHS}, {faster}, no augmentation; curvature of 256 images, 50 Lanczos "
        "steps instead of 100",
    }


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="flatness/cnn",
        source="FF §4: fig. 4",
        shows="Weight decay makes a plain convolutional network sharper, and its loss gap smaller.",
        cost={
            "smoke": "2 s, 192 embedded digits, LeNet5",
            "small": "6 minutes, 640 coarse images of CIFAR-10",
            "paper": "All-CNN-C, 2,000 images of CIFAR-100, 60 epochs: 60 s on an H200",
        },
        run=partial(run, CNN),
        subject=subject(CNN),
        reduced=reduced(CNN),
        checks=partial(checks, CNN),
    ),
    Entry(
        name="flatness/preresnet",
        source="FF §4: fig. 5",
        shows="The unregularized residual network is flatter in both measures, and worse.",
        cost={
            "smoke": "4 s, 192 coarse embedded digits, PreResNet-11",
            "small": "6 minutes, 640 coarse images of CIFAR-10, PreResNet-11",
            "paper": "PreResNet-164, 2,000 images of CIFAR-100, 40 epochs: 150 s on an H200",
        },
        run=partial(run, PRERESNET),
        subject=subject(PRERESNET),
        reduced=reduced(PRERESNET),
        checks=partial(checks, PRERESNET),
    ),
    Entry(
        name="flatness/wide-resnet",
        source="FF §4: fig. 6, 7; PP fig. 1",
        shows="The unregularized wide residual network is flatter by far, most of all with batch "
        "norms in eval mode, and worse.",
        cost={
            "smoke": "4 s, 192 coarse embedded digits, WideResNet-10x1",
            "small": "6 minutes, 640 coarse images of CIFAR-10, WideResNet-10x2",
            "paper": "WideResNet-28x10, 2,000 images of CIFAR-100, 30 epochs: 200 s on an H200",
        },
        run=partial(run, WIDE),
        subject=subject(WIDE),
        reduced=reduced(WIDE),
        checks=partial(checks, WIDE),
    ),
)
