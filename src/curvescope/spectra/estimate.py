"""A number with its error and its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import torch
from torch import Tensor

from curvescope._checks import NOT_FINITE, AnyFloat
from curvescope.errors import CurvescopeError
from curvescope.spectra.control import Status

T = TypeVar("T", float, Tensor)


@dataclass(frozen=True)
class Estimate(Generic[T]):
    """``value ± stderr``: one standard error over the probes, infinite for a single probe.

    ``stderr`` says how far the value is off in the root mean square. It is an estimate itself, and
    two or three of it are no interval where the probes are few or one eigenvalue carries the sum:
    :meth:`interval` is. ``products`` counts the columns multiplied, ``probes`` the samples behind
    ``stderr``. ``bias`` bounds an error that more probes do not lower (0 for unbiased estimators).

    >>> estimate = Estimate(10.0, 0.5, products=32, probes=32)
    >>> low, high = estimate.interval(0.95)
    >>> round(low, 2), round(high, 2)
    (8.55, 11.45)
    """

    value: Annotated[T, NOT_FINITE]
    stderr: Annotated[T, NOT_FINITE]
    products: int
    probes: int
    status: Status = Status.DONE
    bias: AnyFloat = 0.0

    def interval(self, level: float = 0.95) -> tuple[T, T]:
        """An interval that contains the true value with probability ``level``, for any spectrum.

        ``value ± (quantile(level, probes) · stderr + bias)``; see :func:`quantile`.
        """
        reach = quantile(level, self.probes) * self.stderr + self.bias
        return self.value - reach, self.value + reach


def quantile(level: float, probes: int) -> float:
    """The half width of an interval of this level, in standard errors.

    A sample ``vᵀ f(A) v = Σ f(λ_i) (u_iᵀ v)²`` is skewed as far as few eigenvalues carry it: the
    mean of ``n`` samples is the least known when it is one, ``f(λ) χ²_1``, which a sample of few
    cannot tell from a flat spectrum. What covers that case covers all: Student's quantile, with
    ``0.65 √(n − 1)`` degrees of freedom in place of the ``n − 1`` of normal samples. (Below two
    probes it is 1: the standard error of one probe is infinite, that of an exact number zero.)
    ``benchmarks/intervals.py`` measures it.

    >>> [round(quantile(0.95, n), 1) for n in (4, 8, 16, 32, 1000)]
    [9.8, 5.0, 3.6, 2.9, 2.1]
    """
    if not 0 < level < 1:
        rule = "`level` must lie between 0 and 1"
        raise CurvescopeError("interval(level)", rule, given=repr(level))
    if probes < 2:
        return 1.0
    return student((1 - level) / 2, 0.65 * math.sqrt(probes - 1))


def student(tail: float, degrees: float) -> float:
    """The value that Student's ``t`` with ``degrees`` of freedom exceeds with probability ``tail``.

    >>> round(student(0.025, 9), 3)
    2.262
    """
    from scipy.special import stdtrit  # importing it adds a filter of warnings

    return -float(stdtrit(degrees, tail))


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
        """The tensors that :meth:`load` needs."""
        return {"mean": self.mean, "squares": self._squares, "count": torch.tensor(self.count)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a saved state."""
        self.mean = state["mean"].to(self.mean)
        self._squares = state["squares"].to(self.mean)
        self.count = int(state["count"])
