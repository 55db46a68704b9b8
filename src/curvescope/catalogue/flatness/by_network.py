"""FF fig. 4 to 7, PP fig. 1: weight decay and sharpness of the three networks of CIFAR-100.

``practical-bound/tables`` reads the trainings and spectra of these entries.
"""

from __future__ import annotations

from functools import partial

from curvescope.catalogue.entry import Entry
from curvescope.catalogue.flatness.weight_decay import Printed, Study, run

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


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="flatness/cnn",
        source="FF §4, fig. 4",
        shows="Weight decay makes a plain convolutional network sharper, and its loss gap smaller.",
        cost={
            "smoke": "2 s, 192 embedded digits, LeNet5",
            "small": "6 minutes, 640 coarse images of CIFAR-10",
            "paper": "All-CNN-C, 2,000 images of CIFAR-100, 60 epochs: 60 s on an H200",
        },
        run=partial(run, CNN),
    ),
    Entry(
        name="flatness/preresnet",
        source="FF §4, fig. 5",
        shows="The unregularised residual network is flatter in both measures, and worse.",
        cost={
            "smoke": "4 s, 192 coarse embedded digits, PreResNet-11",
            "small": "6 minutes, 640 coarse images of CIFAR-10, PreResNet-11",
            "paper": "PreResNet-164, 2,000 images of CIFAR-100, 40 epochs: 150 s on an H200",
        },
        run=partial(run, PRERESNET),
    ),
    Entry(
        name="flatness/wide-resnet",
        source="FF §4, fig. 6 and 7; PP fig. 1",
        shows="The unregularised wide residual network is flatter by far, most of all with batch "
        "norms in eval mode, and worse.",
        cost={
            "smoke": "4 s, 192 coarse embedded digits, WideResNet-10x1",
            "small": "6 minutes, 640 coarse images of CIFAR-10, WideResNet-10x2",
            "paper": "WideResNet-28x10, 2,000 images of CIFAR-100, 30 epochs: 200 s on an H200",
        },
        run=partial(run, WIDE),
    ),
)
