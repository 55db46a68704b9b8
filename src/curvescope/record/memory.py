"""How much memory is free, and how much a recording holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curvescope.errors import MemoryLimitError

_UNKNOWN = 4 << 30  # when the system does not say: a careful guess
_NAMES_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def free(device: torch.device) -> int:
    """Bytes that can still be taken on a device."""
    if device.type == "cuda":
        available, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(available) + int(cached)
    return free_on_host(Path("/"))


def free_on_host(root: Path) -> int:
    """What the machine has available, or what the process's control groups leave it if less.

    A container may take no more than the limit of its control group or of any group around it,
    however much memory the machine has. ``root`` is the file system that is asked.
    """
    limits = [n for n in (_available(root), *_left_in_groups(root)) if n is not None]
    return max(0, min(limits)) if limits else _UNKNOWN


def _available(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """What is left below the limit of each control group that the process is in."""
    for line in _lines(root / "proc/self/cgroup"):  # "0::/a/b" or "4:memory:/a/b"
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
            inactive = "inactive_file"
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", _NAMES_1
            inactive = "total_inactive_file"
        else:
            continue
        group = mount / path.strip().lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break  # seen from inside a container, its own group is the mount itself
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and used is not None:
                yield limit - used + _statistic(folder / "memory.stat", inactive)


def _number(file: Path) -> int | None:
    content = "".join(_lines(file)).strip()
    return int(content) if content.isdecimal() else None  # "max": no limit


def _statistic(file: Path, name: str) -> int:
    """Files in memory that were not used of late are given up when memory is wanted."""
    for line in _lines(file):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def address(t: Tensor) -> int | None:
    """Where the numbers of a tensor begin in memory; None for one that has no memory to share.

    Autograd writes a zero derivative as a tensor without memory, and a sparse one has several.

    >>> address(torch._efficientzerotensor((2,))) is None
    True
    """
    if t.layout is not torch.strided or not t.numel() or t._is_zerotensor():
        return None
    return t.untyped_storage().data_ptr() or None  # nowhere on the meta device


def held(things: Iterable[Any], *more: Any) -> list[Tensor]:
    """The tensors reachable from closures, containers and plain objects, each memory once."""
    tensors: dict[int, Tensor] = {}
    visited: set[int] = set()
    queue: list[Any] = [*things, *more]
    while queue:
        thing = queue.pop()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        if isinstance(thing, Tensor):
            where = address(thing)
            if where is not None:
                tensors.setdefault(where, thing)
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
    return list(tensors.values())


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


def need(where: str, what: str, needed: float, device: torch.device, remedy: str) -> None:
    """Refuse work that takes more than half of the free memory, before it is begun."""
    available = free(device)
    if needed > 0.5 * available:
        half = f"more than half of the {readable(available)} that are free"
        rule = f"{what} take {readable(needed)}, {half}"
        raise MemoryLimitError(where, rule, remedy=remedy)
