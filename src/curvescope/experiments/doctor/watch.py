"""Time and memory of one action, as it is run here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

_LOG = "KINETO_LOG_LEVEL"
_ENOUGH = 0.5  # seconds of repetitions
_MOST = 5  # of them


def seconds(act: Callable[[], object], device: torch.device) -> float:
    """The median time of a few calls; of one that takes long, that of the first.

    Something must have called it before: a first call is slower.
    """
    return median(_times(lambda: once(act, device)))


def beside(act: Callable[[], object], unit: Callable[[], object], device: torch.device) -> float:
    """The time of ``act()`` in those of ``unit()``, taken in turns.

    Other work on the machine slows down both, and little of it is left in the median of ratios.
    """
    return median(_times(lambda: once(act, device) / max(once(unit, device), 1e-9)))


def _times(sample: Callable[[], float]) -> list[float]:
    """Samples: as many as fit into a short time, but at least one and at most five."""
    samples: list[float] = []
    started = time.perf_counter()
    while not samples or (len(samples) < _MOST and time.perf_counter() - started < _ENOUGH):
        samples.append(sample())
    return samples


def once(act: Callable[[], object], device: torch.device) -> float:
    """The time of one call, on a GPU until the device has finished."""
    _finish(device)
    started = time.perf_counter()
    act()
    _finish(device)
    return time.perf_counter() - started


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(act: Callable[[], object], device: torch.device) -> tuple[float, int]:
    """Seconds and bytes at the peak of an action."""
    peak_bytes, _ = peak(act, device)
    return seconds(act, device), peak_bytes


def once_with_peak(act: Callable[[], object], device: torch.device) -> tuple[float, int]:
    """The time of one call and its bytes at the peak; counting these slows small operations."""
    times: list[float] = []
    peak_bytes, _ = peak(lambda: times.append(once(act, device)), device)
    return times[0], peak_bytes


def peak(act: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Bytes that torch allocates in ``act()`` beyond what was there: at the peak, and at the end.

    On the CPU every allocation is counted, by torch's profiler.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        act()
        torch.cuda.synchronize(device)
        after = torch.cuda.memory_allocated(device) - before
        return torch.cuda.max_memory_allocated(device) - before, after
    from torch.profiler import ProfilerActivity, profile

    with (
        _quiet(),
        profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False
        ) as profiler,
    ):
        act()
    results = profiler.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    allocated = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        highest = max(highest, allocated)
    return highest, allocated


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler writes notes of its own to the terminal, past Python's streams."""
    before, nothing, terminal = os.environ.get(_LOG), os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.environ[_LOG] = "99"
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nothing)
        if before is None:
            del os.environ[_LOG]
        else:
            os.environ[_LOG] = before
