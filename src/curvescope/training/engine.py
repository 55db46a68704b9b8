"""Passing over the data: as a plain loop, or by replaying a CUDA graph of many steps.

Launching the kernels of a small network's step takes longer than running them. On a GPU a stretch
of steps is therefore captured once and replayed: the host copies the next sample numbers into a
fixed place and launches the whole stretch at once. Several networks are
captured side by side, each on a branch of its own, and share the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from curvescope.training.learner import Learner, Steps

Replay = Callable[[], None]
Recorder = Callable[[Sequence[Learner], Sequence[Replay]], Replay]
"""Makes one replay out of the branches, one for each learner; leaves the learners as they were."""

_STRETCH = 32
"""Steps in a graph: enough that the host's work for one launch is small against theirs."""


def stretches(samples: int, batch_size: int, length: int, device: torch.device) -> list[Steps]:
    """An epoch as stretches of ``length`` steps and a last one with the rest.

    >>> parts = stretches(10, 2, 2, torch.device("cpu"))
    >>> [part.sizes for part in parts]
    [(2, 2), (2, 2), (2,)]
    """
    sizes = [min(batch_size, samples - start) for start in range(0, samples, batch_size)]
    made: dict[tuple[int, ...], Steps] = {}
    parts = []
    for start in range(0, len(sizes), length):
        part = tuple(sizes[start : start + length])
        if part not in made:
            counts = torch.tensor(part, dtype=torch.float64, device=device)
            made[part] = Steps(part, counts)
        parts.append(made[part])
    return parts


class Engine:
    """Takes learners through epochs, step by step. All have the same data and batch size."""

    stretch = 1

    def __init__(self, learners: Sequence[Learner], X: Tensor, y: Tensor) -> None:
        self._learners, self._X, self._y = list(learners), X, y
        size = learners[0].recipe.batch_size
        self._stretches = stretches(len(y), size, self.stretch, X.device)
        self.steps = sum(len(part.sizes) for part in self._stretches)

    def epoch(self, orders: Tensor, rates: Tensor | None = None) -> Iterator[int]:
        """One pass over the data; yields the number of steps launched so far, without waiting.

        Args:
            orders: ``[learners, N]``, each learner's permutation of the samples.
            rates: ``[learners, steps]``, the learning rate of each step; by default as it is.
        """
        orders = orders.to(self._X.device)
        if rates is None:
            now = [learner.optimizer.rate for learner in self._learners]
            rates = torch.stack(now)[:, None].expand(-1, self.steps)
        rates = rates.to(self._learners[0].optimizer.rate)
        for learner in self._learners:
            learner.totals.zero_()
        sample = step = 0
        for part in self._stretches:
            last = step + len(part.sizes)
            self._advance(part, orders[:, sample : sample + part.samples], rates[:, step:last])
            for learner in self._learners:
                learner.count_change()
            sample, step = sample + part.samples, last
            yield step

    def _advance(self, part: Steps, orders: Tensor, rates: Tensor) -> None:
        for learner, rows, rate in zip(self._learners, orders, rates, strict=True):
            learner.advance(self._X, self._y, rows, part, rate)


class RecordedEngine(Engine):
    """The same steps, recorded once for each kind of stretch and replayed from a fixed place."""

    stretch = _STRETCH

    def __init__(
        self, learners: Sequence[Learner], X: Tensor, y: Tensor, record: Recorder | None = None
    ) -> None:
        super().__init__(learners, X, y)
        record = record or CudaRecorder(X.device)
        longest = self._stretches[0].samples
        self._rows = torch.zeros(len(learners), longest, dtype=torch.int64, device=X.device)
        self._rates = torch.stack([learner.optimizer.rate for learner in learners])
        self._rates = self._rates[:, None].repeat(1, self.stretch)
        self._replays: dict[tuple[int, ...], Replay] = {}
        for part in self._stretches:
            if part.sizes not in self._replays:
                branches = [self._branch(i, part) for i in range(len(learners))]
                self._replays[part.sizes] = record(learners, branches)

    def _branch(self, i: int, part: Steps) -> Replay:
        learner, rows = self._learners[i], self._rows[i, : part.samples]
        rates = self._rates[i, : len(part.sizes)]
        return lambda: learner.advance(self._X, self._y, rows, part, rates)

    def _advance(self, part: Steps, orders: Tensor, rates: Tensor) -> None:
        self._rows[:, : part.samples].copy_(orders)
        self._rates[:, : len(part.sizes)].copy_(rates)
        self._replays[part.sizes]()


@contextmanager
def undone(learners: Sequence[Learner]) -> Iterator[None]:
    """Put back what steps change: the tensors stay where they are and get their values again."""
    before = [(tensor, tensor.clone()) for each in learners for tensor in each.tensors().values()]
    try:
        yield
    finally:
        for tensor, value in before:
            tensor.copy_(value)


class CudaRecorder:
    """Captures branches in one CUDA graph, each on a stream of its own that forks and joins."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: list[torch.cuda.Stream] = []
        self._pool: Any = None

    def __call__(self, learners: Sequence[Learner], branches: Sequence[Replay]) -> Replay:
        """See :data:`Recorder`."""
        while len(self._streams) < len(branches):
            self._streams.append(torch.cuda.Stream(self._device))
        # Kernels are chosen and loaded, and libraries take their workspaces, before the capture.
        with undone(learners):
            for _ in range(2):
                self._side_by_side(branches)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # The graphs run one after the other and keep nothing between runs: one pool serves all.
        with torch.cuda.graph(graph, pool=self._pool):
            self._side_by_side(branches)
        self._pool = graph.pool()
        return graph.replay

    def _side_by_side(self, branches: Sequence[Replay]) -> None:
        main = torch.cuda.current_stream(self._device)
        streams = self._streams[: len(branches)]
        for stream, branch in zip(streams, branches, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                branch()
        for stream in streams:
            main.wait_stream(stream)


def make_engine(learners: Sequence[Learner], X: Tensor, y: Tensor, *, capture: bool) -> Engine:
    """A CUDA graph where the device, the model and its penalty allow one, else the plain loop.

    A model that cannot be captured (it looks at values on the host, say) is reported and trained
    without a graph; the weights come out the same.
    """
    if X.device.type != "cuda" or not capture:
        return Engine(learners, X, y)
    try:
        return RecordedEngine(learners, X, y)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"train: no CUDA graph, launching each kernel ({reason})", stacklevel=2)
        return Engine(learners, X, y)
