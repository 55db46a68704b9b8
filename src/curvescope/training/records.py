"""The files of a run besides its weights: dataclasses, stored by :mod:`curvescope.io`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from curvescope._checks import AnyFloat
from curvescope.networks.spec import NetworkSpec
from curvescope.training.objective import Fit
from curvescope.training.recipe import Recipe


@dataclass(frozen=True)
class DataNote:
    """A data set by its name, the options it was loaded with (if recorded), shapes and contents."""

    name: str | None
    options: dict[str, Any] | None
    shapes: tuple[tuple[int, ...], ...]
    sha256: str

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return self.shapes[0][0]


@dataclass(frozen=True)
class Training:
    """``config.json``: all that decides the outcome of a run."""

    FORMAT: ClassVar[int] = 4

    network: NetworkSpec | None
    architecture: dict[str, tuple[int, ...]]
    model: str  # the digest of the network: its layers, their settings, and its weights
    frozen: tuple[str, ...]
    initial_weights: str
    recipe: Recipe
    loss: str | None  # the description of a loss of the user's code, and its digest
    penalty: str | None
    data: DataNote

    @property
    def name(self) -> str:
        """The network's name; other models than those of the papers have none."""
        return "own model" if self.network is None else self.network.name


@dataclass(frozen=True)
class Epoch:
    """A line of ``metrics.jsonl``: the numbers of one epoch.

    ``loss`` and ``accuracy`` are means over the steps of the epoch, while the weights were moving;
    the test figures are those of the weights at its end, in evaluation mode. The accuracy of a loss
    without right answers is NaN.
    """

    epoch: int
    lr: float
    loss: float
    accuracy: AnyFloat
    test_loss: AnyFloat | None
    test_accuracy: AnyFloat | None
    seconds: float


@dataclass(frozen=True)
class Result:
    """``result.json``: the fits of the final weights, or the epoch in which the loss diverged."""

    train: Fit | None
    test: Fit | None
    diverged: int | None
