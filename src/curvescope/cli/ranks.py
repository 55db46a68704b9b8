"""One command on several processes, as torchrun starts them: rank 0 writes and speaks.

The other ranks compute the same stages on their part of the data, read what rank 0 has written, and
are silent: an error of theirs is said by rank 0, which is told of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from curvescope.ranks import Group

_PATIENCE = 10.0  # seconds that a silent rank waits for the one that speaks

_group: list[Group] = []  # that this process belongs to, once it is joined


def number() -> int:
    """The rank that torchrun has given to this process; 0 without it."""
    return int(os.environ.get("RANK", "0")) if several() else 0


def several() -> bool:
    """Whether torchrun has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ


def refuse(command: str) -> None:
    """Refuse a command that is the work of one process."""
    if several():
        rule = f"`{command}` is the work of one process"
        remedy = "start it without torchrun, which is for `analyze`"
        raise CurvescopeError(command, rule, remedy=remedy)


@contextmanager
def joined(device: str) -> Iterator[tuple[Group, str]]:
    """The group of all processes and this one's device; only rank 0 writes files in the block."""
    from curvescope import io
    from curvescope.ranks import Group

    if not several():
        yield Group.of(None), device
        return
    import torch
    from torch import distributed

    cuda = torch.cuda.is_available() and device in ("auto", "cuda")
    if cuda:
        local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    if not distributed.is_initialized():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    group = Group.of("world")
    _group[:] = [group]
    with group.together(), io.written_by(group.rank == 0):
        yield group, device
        group.agree(True)  # rank 0 has said and written all


def shard(data: Any, batch_size: int | None, group: Group) -> tuple[Any, int | None]:
    """This rank's batches, consecutive ones of the whole data, and their size.

    Data in memory are cut; where they have fewer batches than there are ranks, batches become
    smaller. Of a loader every rank reads all batches and takes its own.
    """
    if group.alone:
        return data, batch_size
    if isinstance(tensors := getattr(data, "tensors", data), tuple) and batch_size is not None:
        X, y = tensors
        size = max(1, min(batch_size, -(-len(X) // group.size)))
        mine = _own(-(-len(X) // size), group)
        rows = slice(mine.start * size, mine.stop * size)
        return (X[rows], y[rows]), size
    try:
        length: int | None = len(data)
    except TypeError:
        length = None
    return _Own(data, None if length is None else _own(length, group), group), None


def _own(count: int, group: Group) -> range:
    """The numbers of this rank among so many batches."""
    return range(count * group.rank // group.size, count * (group.rank + 1) // group.size)


class _Own:
    """The batches of a loader that are this rank's; every p-th one where it has no length."""

    def __init__(self, data: Any, own: range | None, group: Group) -> None:
        self._data, self._own, self._group = data, own, group

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self._data):
            if self._own is None:
                mine = index % self._group.size == self._group.rank
            else:
                mine = index in self._own
            if mine:
                yield batch

    def __len__(self) -> int:
        if self._own is None:
            raise TypeError("the data does not know its length")
        return len(self._own)


def speaks() -> bool:
    """Whether this process is the one that says what went wrong: rank 0, if it is still there.

    Another one waits until the speaker has ended, because torchrun ends all ranks with the first.
    """
    if not several():
        return True
    if not _group:
        return number() == 0
    group = _group[0]
    speaker = 1 if 0 in group.gone() else 0
    if group.rank == speaker:
        return True
    until = time.monotonic() + _PATIENCE
    while speaker not in group.gone() and time.monotonic() < until:
        time.sleep(0.05)
    return False
