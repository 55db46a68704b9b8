"""Work tried out on two small numbers of samples, and dense matrices on a part: counted up.

A pass over the data grows like the samples, a Gram matrix like their square, a decomposition like
the third power of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.experiments.doctor.algebra import Cost
from curvescope.experiments.doctor.products import on
from curvescope.experiments.doctor.watch import once, once_with_peak
from curvescope.problem import Problem
from curvescope.record.samples import choose

_TRIED = (16, 128)  # samples
_PIECE = 256 << 20  # bytes of inputs and errors that are recorded at a time
_MATRICES = 4  # of the size of a Gram matrix that are there at the same time
_PART = 1024  # rows of a matrix that is decomposed
_COLUMN = 1024  # rows of a matrix that is multiplied with


class Trials:
    """Work on a few samples of a problem, and what it takes on all of them.

    Args:
        problem: The problem.
        samples: How many there are.
    """

    def __init__(self, problem: Problem, samples: int) -> None:
        self._problem, self.samples = problem, samples
        self._first = next(iter(problem.data))

    @property
    def terms(self) -> int:
        """Labels of a sample."""
        target = self._first.target
        return target[0].numel() if isinstance(target, Tensor) and len(target) else 1

    def batch(self, act: Callable[[Problem], object]) -> Cost:
        """Work that goes through the data batch by batch, or in pieces of batches."""
        trial = self._trial(act)
        if trial is None:
            return Cost(0.0)
        more = trial.bytes_each * (self._in_batch - trial.samples)
        seconds = trial.seconds + trial.seconds_each * (self.samples - trial.samples)
        return Cost(seconds, int(trial.bytes + min(max(more, 0.0), _PIECE)))

    def gram(self, act: Callable[[Problem], object], rows: int) -> Cost:
        """A Gram matrix with so many rows, and the layers' rows or inputs of all samples."""
        trial = self._trial(act)
        if trial is None:
            return Cost(0.0)
        ratio = self.samples / trial.samples
        growth = trial.seconds_each * trial.samples * (ratio - 1)
        matrices = _MATRICES * 8 * rows**2
        more = max(trial.bytes_each, 0.0) * (self.samples - trial.samples)
        seconds = trial.seconds + growth + self._multiplied(rows)
        return Cost(seconds, int(matrices + trial.bytes + more))

    def _multiplied(self, rows: int) -> float:
        """Seconds of ``K = R Rᵀ`` in float64: of a matrix by its outputs, of others by entries."""
        shapes = self._problem.params.shapes.values()
        columns = sum(s[0] if len(s) == 2 else s.numel() for s in shapes)
        part = torch.ones(256, 256, dtype=torch.float64, device=self._problem.device)
        act = partial(torch.mm, part, part)
        act()
        return once(act, self._problem.device) * (rows / 256) ** 2 * columns / 256

    def _trial(self, act: Callable[[Problem], object]) -> _Trial | None:
        """None where the analysis leaves the work out, with its reason."""
        sizes = [min(size, self._in_batch) for size in _TRIED]
        device = self._problem.device
        try:
            few, more = (self._chosen(size) for size in sizes)
            (short, low), (long, high) = (once_with_peak(partial(act, p), device)
                                          for p in (few, more))  # fmt: skip
        except CurvescopeError:
            return None
        step = sizes[1] - sizes[0]
        if not step:
            return _Trial(sizes[1], long, long / sizes[1], high, 0.0)
        return _Trial(sizes[1], long, max(long - short, 0.0) / step, high, (high - low) / step)

    @cached_property
    def _in_batch(self) -> int:
        target = self._first.target
        return len(target) if isinstance(target, Tensor) else 1

    def _chosen(self, count: int) -> Problem:
        """The problem on samples from all over the first batch, so that classes are among them."""
        chosen = torch.linspace(0, self._in_batch - 1, count).long().to(self._problem.device)
        return on(self._problem, choose(self._first, chosen))


class _Trial:
    """Seconds and bytes on so many samples, and what each sample more adds to them."""

    def __init__(
        self, samples: int, seconds: float, seconds_each: float, bytes: int, bytes_each: float
    ) -> None:
        self.samples, self.seconds, self.seconds_each = samples, seconds, seconds_each
        self.bytes, self.bytes_each = bytes, bytes_each


def cubic(
    rows: int, device: torch.device, act: Callable[[Tensor], object] = torch.linalg.eigvalsh
) -> float:
    """Seconds of a decomposition in float64; of a large matrix, from one of a part of it."""
    part = min(rows, _PART)
    g = torch.Generator().manual_seed(0)
    matrix = torch.randn(part, part, generator=g, dtype=torch.float64).to(device)
    matrix = matrix @ matrix.T + torch.eye(part, dtype=torch.float64, device=device)
    return once(partial(act, matrix), device) * (rows / part) ** 3


def dense_product(rows: int, device: torch.device) -> float:
    """Seconds of a product with a dense matrix in float64, from one with a part of it."""
    part = min(rows, _COLUMN)
    matrix = torch.ones(part, part, dtype=torch.float64, device=device)
    act = partial(torch.mv, matrix, matrix[:, 0].clone())
    act()
    return once(lambda: [act() for _ in range(8)], device) / 8 * (rows / part) ** 2
