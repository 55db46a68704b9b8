"""How much memory is free, and how much a recording holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_UNKNOWN = 4 << 30  # when the system does not say: a careful guess


def free(device: torch.device) -> int:
    """Bytes that can still be taken on a device."""
    if device.type == "cuda":
        available, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(available) + int(cached)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return _UNKNOWN
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNKNOWN


def held(things: Iterable[Any], *more: Any) -> list[Tensor]:
    """The tensors reachable from closures, containers and plain objects, each memory once."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    queue: list[Any] = [*things, *more]
    while queue:
        thing = queue.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            if thing.device.type != "meta" and thing.numel():
                found.setdefault(thing.untyped_storage().data_ptr(), thing)
        elif isinstance(thing, dict):
            queue.extend(thing.values())
        elif isinstance(thing, list | tuple | set):
            queue.extend(thing)
        elif isinstance(thing, Callable) and getattr(thing, "__closure__", None):  # type: ignore[arg-type]
            for cell in thing.__closure__:
                try:
                    queue.append(cell.cell_contents)
                except ValueError:  # a name that its function never bound
                    continue
            queue.extend(thing.__defaults__ or ())
        elif type(thing).__module__.startswith("curvescope."):
            queue.extend(getattr(thing, "__dict__", {}).values())
        elif hasattr(thing, "__self__") and type(thing).__name__ == "method":
            queue.append(thing.__self__)
    return list(found.values())


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind some tensors."""
    return sum(t.untyped_storage().nbytes() for t in tensors)


def readable(count: float) -> str:
    """``1536`` as ``'1.5 KiB'``.

    >>> readable(3 << 30)
    '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
