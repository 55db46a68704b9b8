"""The variants of VGG11 and ResNet18 that DH trained, with their rows of tables 6 and 7."""

from __future__ import annotations

from dataclasses import dataclass

from curvescope.studies.dissecting_hessian import panels


@dataclass(frozen=True)
class Variant:
    """A network on a data set, with its rows of tables 6 and 7."""

    network: str
    data: str
    linear: panels.Printed | None = None
    convolutional: panels.Printed | None = None
    samples: int = 5000  # to train on at the small scale


def _printed(*numbers: float) -> panels.Printed:
    a, b, c, d, e, f = numbers
    return panels.Printed(alignment=(a, b, c), ratio=(d, e, f))


VGG_32 = Variant(
    "VGG11-W32",
    "cifar-10",
    _printed(0.990, 0.988, 0.993, 6.02, 5.57, 6.51),
    _printed(0.995, 0.991, 0.999, 5.31, 2.39, 9.09),
)
VGG = (
    VGG_32,
    Variant("VGG11-W48", "cifar-10"),  # DH prints W64 twice for CIFAR10: which one is W48?
    Variant("VGG11-W64", "cifar-10"),
    Variant("VGG11-W200", "cifar-10"),
    Variant(
        "VGG11-W48",
        "cifar-100",
        _printed(0.999, 0.999, 0.999, 17.861, 15.456, 20.491),
        _printed(0.996, 0.991, 0.999, 5.72, 2.46, 9.90),
    ),
    Variant(
        "VGG11-W64",
        "cifar-100",
        _printed(0.999, 0.999, 1.000, 19.185, 18.358, 20.410),
        _printed(0.995, 0.991, 0.999, 5.66, 2.50, 10.79),
    ),
    Variant(
        "VGG11-W80",
        "cifar-100",
        _printed(0.999, 0.999, 1.000, 19.455, 18.120, 21.450),
        _printed(0.994, 0.988, 0.998, 5.18, 2.50, 8.45),
    ),
)
RESNET = (
    Variant(
        "ResNet18-W48",
        "cifar-100",
        _printed(1.0, 1.0, 1.0, 28.23, 27.37, 29.27),
        _printed(0.981, 0.917, 0.998, 3.79, 1.89, 7.56),
    ),
    Variant(
        "ResNet18-W64",
        "cifar-100",
        _printed(1.0, 1.0, 1.0, 27.07, 25.72, 29.50),
        _printed(0.985, 0.910, 0.998, 3.96, 1.81, 7.53),
    ),
    Variant(
        "ResNet18-W80",
        "cifar-100",
        _printed(1.0, 1.0, 1.0, 28.23, 25.98, 30.03),
        _printed(0.987, 0.954, 0.997, 4.16, 2.11, 7.04),
    ),
)
