"""A number with its error and its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import torch
from torch import Tensor

from curvescope._checks import NOT_FINITE, AnyFloat
from curvescope.spectra.control import Status

T = TypeVar("T", float, Tensor)


@dataclass(frozen=True)
class Estimate(Generic[T]):
    """``value ± stderr``: one standard error over the probes, infinite where one probe was all.

    ``products`` counts the columns multiplied, ``probes`` the samples behind ``stderr``. ``bias``
    bounds an error that more probes do not lower (0 for unbiased estimators).
    """

    value: Annotated[T, NOT_FINITE]
    stderr: Annotated[T, NOT_FINITE]
    products: int
    probes: int
    status: Status = Status.DONE
    bias: AnyFloat = 0.0


class Samples:
    """Mean and spread of a stream of samples ``[b, …]`` in float64, without keeping them.

    Blocks are merged by Chan, Golub and LeVeque's update, which does not cancel.

    >>> samples = Samples(())
    >>> samples.add(torch.tensor([1.0, 2.0])); samples.add(torch.tensor([6.0]))
    >>> samples.mean, samples.stderr
    (tensor(3., dtype=torch.float64), tensor(1.5275, dtype=torch.float64))
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> None:
        self.count = 0
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self._squares = torch.zeros(shape, dtype=torch.float64, device=device)

    def add(self, block: Tensor) -> None:
        """Take in samples along the first axis."""
        b, block = block.shape[0], block.double()
        mean = block.mean(0)
        shift, total = mean - self.mean, self.count + b
        squares = self._squares + (block - mean).square().sum(0)
        self._squares = squares + shift.square() * (self.count * b / total)
        self.mean = self.mean + shift * (b / total)
        self.count = total

    @property
    def stderr(self) -> Tensor:
        """The standard error of the mean; infinite below two samples."""
        if self.count < 2:
            return torch.full_like(self.mean, float("inf"))
        return (self._squares / (self.count - 1) / self.count).sqrt()

    def estimate(self, products: int, status: Status) -> Estimate[float]:
        """The mean of scalar samples as a result."""
        return Estimate(float(self.mean), float(self.stderr), products, self.count, status)

    def state(self) -> dict[str, Tensor]:
        """Everything that :meth:`load` needs."""
        return {"mean": self.mean, "squares": self._squares, "count": torch.tensor(self.count)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a saved state."""
        self.mean = state["mean"].to(self.mean)
        self._squares = state["squares"].to(self.mean)
        self.count = int(state["count"])
