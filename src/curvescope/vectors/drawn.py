"""The random numbers of a part of a vector, which are those of the whole vector there."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope import _random

KINDS = ("rademacher", "gaussian", "sphere")
_CHUNK = 1 << 20  # numbers drawn at a time
_GROUP = 16
"""torch transforms this many normal numbers on a CPU together, and the last ones of a vector again
with those before them: a chunk is a multiple of it, and the last one has at least so many."""


def drawn(
    size: int,
    parts: tuple[tuple[int, int], ...],
    kind: str,
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """What lies in ``parts`` of a random vector ``[size]``; the generator goes through all of it.

    On a CPU it is drawn in chunks; a GPU's generator has no order in which parts of a vector could
    be drawn, so that the whole vector is there for a moment.

    >>> both = [torch.Generator().manual_seed(0) for _ in range(2)]
    >>> whole, part = (
    ...     drawn(40, parts, "gaussian", g, torch.float64, torch.device("cpu"))
    ...     for parts, g in zip((((0, 40),), ((3, 5), (30, 40))), both)
    ... )
    >>> torch.equal(part, torch.cat([whole[3:5], whole[30:]]))
    True
    """
    source = _random.rademacher if kind == "rademacher" else _random.gaussian
    if parts == ((0, size),):
        return source((size,), generator, dtype, device)
    step = _CHUNK if generator.device.type == "cpu" else size
    pieces = [torch.empty(0, dtype=dtype, device=device)]
    start = 0
    while start < size:
        stop = start + step if size - start >= step + _GROUP else size
        chunk = source((stop - start,), generator, dtype, generator.device)
        for begin, end in parts:
            low, high = max(begin, start), min(end, stop)
            if low < high:
                pieces.append(chunk[low - start : high - start].to(device, copy=True))
        start = stop
    return torch.cat(pieces)
