"""Labels and sub-samples: two classes, random labels, balanced sub-samples.

Everything random follows from one seed. Labels, sub-samples and the noise of synthetic sets each
have a separate stream for each split, so that drawing from one never changes another.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from curvescope._checks import positive_int
from curvescope._random import child
from curvescope.errors import CurvescopeError

SPLITS = ("train", "test")
_STREAMS = [(purpose, split) for purpose in ("labels", "sub-sample", "noise") for split in SPLITS]


def stream(
    where: str, seed: int, purpose: Literal["labels", "sub-sample", "noise"], split: str
) -> torch.Generator:
    """The generator for one purpose and split: a child of the one that the seed starts."""
    parent = torch.Generator().manual_seed(positive_int(where, "seed", seed, minimum=0))
    children = [child(parent) for _ in _STREAMS]
    return children[_STREAMS.index((purpose, split))]


def two_classes(where: str, labels: Tensor, classes: int) -> Tensor:
    """0 for the classes 0–4 and 1 for 5–9, as in MNIST-2 (DH App. D.1).

    >>> two_classes("example", torch.tensor([0, 4, 5, 9]), 10)
    tensor([0, 0, 1, 1])
    """
    if classes != 10:
        rule = f"-2 means 0–4 against 5–9 and needs ten classes, the data has {classes}"
        raise CurvescopeError(where, rule)
    return (labels >= 5).to(torch.int64)


def random_labels(labels: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """A label for each sample, uniform on the classes and independent of it (DH App. D.1).

    >>> g = torch.Generator().manual_seed(0)
    >>> random_labels(torch.zeros(5000, dtype=torch.int64), 2, g).double().mean().round(decimals=1)
    tensor(0.5000, dtype=torch.float64)
    """
    return torch.randint(classes, labels.shape, generator=generator)


def balanced_positions(
    where: str, labels: Tensor, classes: int, n: int, generator: torch.Generator | None = None
) -> Tensor:
    """The positions of ``n`` samples of each class, ascending.

    Without a generator they are the first of each class; with one they are drawn without
    replacement, each set of ``n`` being equally likely.

    Args:
        where: The beginning of error messages.
        labels: Labels ``[N]``, on the CPU.
        classes: How many classes there are.
        n: How many samples of each.
        generator: Draws the samples.

    Raises:
        CurvescopeError: If a class has fewer than ``n``.

    >>> balanced_positions("example", torch.tensor([1, 0, 1, 1, 0]), 2, 2)
    tensor([0, 1, 2, 4])
    """
    n = positive_int(where, "per_class", n)
    counts = torch.bincount(labels, minlength=classes)
    least = int(counts.argmin())
    if counts[least] < n:
        needs = f"`per_class={n}` needs {n} samples of each class"
        raise CurvescopeError(where, f"{needs}, class {least} has {int(counts[least])}")
    order = torch.arange(len(labels))
    if generator is not None:
        order = torch.randperm(len(labels), generator=generator)
    by_class = order[torch.argsort(labels[order], stable=True)]
    starts = counts.cumsum(0) - counts
    chosen = by_class[(starts[:, None] + torch.arange(n)).flatten()]
    return chosen.sort().values
