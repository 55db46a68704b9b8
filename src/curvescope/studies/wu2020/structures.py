"""Sizes of the data sets, and three networks line by line (Wu et al. 2020, tables 2 to 5)."""

from __future__ import annotations

import torch

from curvescope._state import evaluated
from curvescope.data import dataset
from curvescope.networks import network
from curvescope.studies.run import Result, Run

Shape = tuple[int, ...]
Line = tuple[str, Shape]  # the module's kind, the shape behind it


def _lenet(*, batch_norm: bool) -> list[Line]:
    """Tables 4 and 5: the same but for the batch norms after each ReLU."""

    def block(layer: str, shape: Shape) -> list[Line]:
        norm = "BatchNorm2d" if layer == "Conv2d" else "BatchNorm1d"
        kinds = [layer, "ReLU", *([norm] if batch_norm else [])]
        return [(kind, shape) for kind in kinds]

    return [
        *block("Conv2d", (6, 28, 28)),
        ("MaxPool2d", (6, 14, 14)),
        *block("Conv2d", (16, 10, 10)),
        ("MaxPool2d", (16, 5, 5)),
        ("Flatten", (400,)),
        *block("Linear", (120,)),
        *block("Linear", (84,)),
        ("Linear", (10,)),
    ]


_DIGITS: list[Line] = [
    ("Flatten", (784,)),
    *(2 * [("Linear", (200,)), ("ReLU", (200,))]),
    ("Linear", (10,)),
]
PRINTED: dict[str, tuple[int, Shape, list[Line]]] = {
    "F-200^2": (3, (1, 28, 28), _DIGITS),
    "LeNet5": (4, (3, 32, 32), _lenet(batch_norm=False)),
    "LeNet5-BN": (5, (3, 32, 32), _lenet(batch_norm=True)),
}
"""Number of the table, inputs, lines."""


def run(run: Run) -> Result:
    """Load the data, build the networks, count."""
    values: dict[str, float] = {}
    for name, (table, inputs, printed) in PRINTED.items():
        ours = lines(name, inputs)
        same = len(ours) == len(printed)
        met = sum(a == b for a, b in zip(ours, printed, strict=False)) if same else 0
        values[f"{name}: lines as in table {table}"] = met
        weights = sum(p.numel() for p in network(name, inputs, 10).parameters())
        values[f"{name}: parameters"] = weights
    for name in run["data"]:
        run.tell(name)
        seed = run.seed if name.endswith("-R") else None
        train, test = (
            dataset(name, root=run.root, split=split, seed=seed) for split in ("train", "test")
        )
        values |= {
            f"{name}: training samples": len(train),
            f"{name}: test samples": len(test),
            f"{name}: numbers in a sample": train.X[0].numel(),
            f"{name}: classes": train.classes,
        }
    return Result(values)


def lines(name: str, inputs: Shape, classes: int = 10) -> list[Line]:
    """The modules of a chain with the shape behind each.

    >>> lines("logistic", (1, 2, 2))
    [('Flatten', (4,)), ('Linear', (10,))]
    """
    model = evaluated(network(name, inputs, classes))
    x = torch.zeros(1, *inputs)
    made = []
    for module in model.children():
        x = module(x)
        made.append((type(module).__name__, tuple(x.shape[1:])))
    return made
