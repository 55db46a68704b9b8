"""What a streamed product takes while it runs, and how many samples of a batch go together.

The memory of a product grows with the samples of a batch. It is measured on a few of them, storage
by storage as operations make it, and continued in a straight line. A batch for which that is more
than half of what is free is cut: losses are averages, so that the sum over the pieces is the sum
over the batch.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from curvescope._state import watching
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem
from curvescope.record.memory import address
from curvescope.record.samples import first_samples

FEW = 4  # samples on which memory is measured first


class Living(TorchDispatchMode):
    """Bytes of the tensors that operations made and that are still there: now, and at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._tensors: Counter[int] = Counter()  # by address
        self._bytes: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        given = {address(t) for t in args if isinstance(t, Tensor)}
        for t in out if isinstance(out, tuple | list) else (out,):
            where = address(t) if isinstance(t, Tensor) else None
            if where is not None and (where in self._bytes or where not in given):
                self._add(t, where)
        return out

    def _add(self, t: Tensor, where: int) -> None:
        if where not in self._bytes:
            self._bytes[where] = t.untyped_storage().nbytes()
            self.now += self._bytes[where]
            self.most = max(self.most, self.now)
        self._tensors[where] += 1
        weakref.finalize(t, self._gone, where)

    def _gone(self, where: int) -> None:
        self._tensors[where] -= 1
        if not self._tensors[where]:
            self.now -= self._bytes.pop(where)
            del self._tensors[where]


@dataclass(frozen=True)
class Peak:
    """Bytes of a product over samples like those of the first batch: ``fixed + each · samples``."""

    fixed: float
    each: float

    def of(self, samples: int) -> int:
        """With so many samples at once."""
        return int(self.fixed + self.each * samples)

    def within(self, room: float) -> int:
        """How many samples fit, at least one."""
        return max(1, int((room - self.fixed) / max(self.each, 1.0)))


class Measured:
    """Measurements of ``act(batch)`` on the first samples of a batch of ``samples``."""

    def __init__(self, batch: Batch, samples: int, act: Callable[[Batch], object]) -> None:
        self._batch, self.samples, self._act = batch, samples, act

    def _on(self, count: int) -> int:
        with watching(Living()) as living:
            self._act(first_samples(self._batch, count))
        return living.most

    def certainly_within(self, room: float) -> bool:
        """Whether the whole batch fits by a few samples alone.

        The peak is the largest of several straight lines, none of which begins below zero: with
        ``r`` times the samples it is at most ``r`` times as high.
        """
        few = min(FEW, self.samples)
        return self._on(few) * (self.samples / few) <= room

    def peak(self, room: float) -> Peak:
        """The line through the last two of a rising number of samples, up to a quarter of all.

        With few samples the peak may be where weights are held, with many where activations are.
        """
        count = min(FEW, self.samples)
        points = [(count, self._on(count))]
        while count < self.samples / 4 and 4 * points[-1][1] < room:
            count = min(4 * count, self.samples)
            points.append((count, self._on(count)))
        if len(points) == 1:
            half = max(1, count // 2)
            points = [(half, self._on(half)), *points] if half < count else [(0, 0), *points]
        (a, low), (b, high) = points[-2:]
        each = max(0.0, (high - low) / (b - a))
        return Peak(max(0.0, low - each * a), each)


def ones(problem: Problem, size: int) -> Tensor:
    """A direction to try a product with, ``[1, P]``."""
    return torch.ones(1, size, dtype=problem.dtype, device=problem.device)
