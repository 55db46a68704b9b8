"""DH D.1, D.2, tables 2 to 5: the data sets and the structure of three networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from curvescope._state import evaluated
from curvescope.data import dataset
from curvescope.networks import network
from curvescope.studies.entry import Entry, Outcome, Row, Settings

Shape = tuple[int, ...]
Line = tuple[str, Shape]  # the module's kind, the shape behind it

_FC = ("Linear", "ReLU")
DIGITS: tuple[Line, ...] = (
    ("Flatten", (784,)),
    *((kind, (200,)) for kind in (*_FC, *_FC)),
    ("Linear", (10,)),
)
"""Table 3."""


def _lenet(*, batch_norm: bool) -> tuple[Line, ...]:
    """Tables 4 and 5: the same but for the batch norms after each ReLU."""

    def block(layer: str, shape: Shape) -> list[Line]:
        norm = "BatchNorm2d" if layer == "Conv2d" else "BatchNorm1d"
        kinds = [layer, "ReLU", *([norm] if batch_norm else [])]
        return [(kind, shape) for kind in kinds]

    return (
        *block("Conv2d", (6, 28, 28)),
        ("MaxPool2d", (6, 14, 14)),
        *block("Conv2d", (16, 10, 10)),
        ("MaxPool2d", (16, 5, 5)),
        ("Flatten", (400,)),
        *block("Linear", (120,)),
        *block("Linear", (84,)),
        ("Linear", (10,)),
    )


@dataclass(frozen=True)
class Printed:
    """A network's table."""

    table: int
    network: str
    inputs: Shape
    lines: tuple[Line, ...]


NETWORKS = (
    Printed(3, "F-200^2", (1, 28, 28), DIGITS),
    Printed(4, "LeNet5", (3, 32, 32), _lenet(batch_norm=False)),
    Printed(5, "LeNet5-BN", (3, 32, 32), _lenet(batch_norm=True)),
)
DATA: dict[str, tuple[int, int, int, int]] = {
    "cifar-10": (50_000, 10_000, 3 * 32 * 32, 10),
    "cifar-10-R": (50_000, 10_000, 3 * 32 * 32, 10),
    "cifar-100": (50_000, 10_000, 3 * 32 * 32, 100),
    "mnist": (60_000, 10_000, 28 * 28, 10),
    "mnist-2": (60_000, 10_000, 28 * 28, 2),
    "mnist-R": (60_000, 10_000, 28 * 28, 10),
}
"""Table 2: samples of the two splits, numbers in a sample, classes."""
EMBEDDED = {"mnist-6k": (5000, 1000, 784, 10), "mnist-6k-2": (5000, 1000, 784, 2)}
"""What stands for it at the smoke scale; not of DH."""


def run(settings: Settings) -> Outcome:
    """Load the data, build the networks, count."""
    rows = [row for printed in NETWORKS for row in _network(printed)]
    real = {name: numbers for name, numbers in DATA.items() if name != "cifar-100"}
    for name, numbers in settings.pick(smoke=EMBEDDED, small=real, paper=DATA).items():
        rows += _data(settings, name, numbers)
    notes: tuple[str, ...] = (
        "A line of tables 3 to 5 counts as met where the module is of the printed kind and has the "
        "printed shape behind it.",
    )
    if settings.scale == "small":
        notes += ("CIFAR-100 is looked at at the scale of the paper only.",)
    return Outcome(tuple(rows), notes=notes)


def lines(name: str, inputs: Shape, classes: int = 10) -> list[Line]:
    """The modules of a chain with the shape behind each.

    >>> lines("logistic", (1, 2, 2))
    [('Flatten', (4,)), ('Linear', (10,))]
    """
    model = evaluated(network(name, inputs, classes))
    x = torch.zeros(1, *inputs)
    found = []
    for module in model.children():
        x = module(x)
        found.append((type(module).__name__, tuple(x.shape[1:])))
    return found


def _network(printed: Printed) -> list[Row]:
    ours = lines(printed.network, printed.inputs)
    met = sum(a == b for a, b in zip(ours, printed.lines, strict=False))
    total = len(printed.lines)
    model: nn.Module = network(printed.network, printed.inputs, 10)
    weights = sum(p.numel() for p in model.parameters())
    start = f"table {printed.table}, {printed.network}"
    return [
        Row(f"{start}: lines as printed", met, total, total, total),
        Row(f"{start}: modules", len(ours), total, total, total),
        Row(f"{start}: parameters", weights, note="DH does not print it"),
    ]


def _data(settings: Settings, name: str, printed: tuple[int, int, int, int]) -> list[Row]:
    settings.tell(f"table 2: {name}")
    seed = settings.seed if name.endswith("-R") else None
    train, test = (
        dataset(name, root=settings.root, split=split, seed=seed) for split in ("train", "test")
    )
    numbers = (len(train), len(test), train.X[0].numel(), train.classes)
    words = ("training samples", "test samples", "numbers in a sample", "classes")
    embedded = name in EMBEDDED
    note = "the embedded subset, not DH's" if embedded else ""
    return [
        Row(f"table 2, {name}: {what}", ours, None if embedded else theirs, theirs, theirs, note)
        for what, ours, theirs in zip(words, numbers, printed, strict=True)
    ]


ENTRY = Entry(
    name="dissecting-hessian/structures",
    source="DH D.1, D.2: tables 2, 3, 4, 5; first version, tables 2, 3, 4, 5",
    shows="Data sets and networks have the sizes and the structure that DH prints.",
    cost={
        "smoke": "1 s, embedded digits",
        "small": "10 s, MNIST and CIFAR-10",
        "paper": "15 s, MNIST, CIFAR-10 and CIFAR-100",
    },
    run=run,
    subject={
        "smoke": "Networks and embedded data",
        "small": "Networks and data sets of DH",
        "paper": "Networks and data sets of DH",
    },
    reduced={
        "smoke": "embedded digits instead of the data sets",
        "small": "without CIFAR-100",
        "paper": "nothing",
    },
)
