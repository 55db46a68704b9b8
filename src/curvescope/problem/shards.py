"""Data that lie on several ranks: how much is where, and what a rank without any works on.

The whole data are the batches of rank 0, then those of rank 1, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from curvescope.errors import CurvescopeError
from curvescope.ranks import Group
from curvescope.ranks.trees import sent

LENT = 2  # samples


def lent(
    group: Group, batches: Any, lengths: Sequence[int | None], tensors: Callable[[Any], Any]
) -> Any:
    """The batches of this rank; a few samples of the first rank with data where it has none.

    ``lengths`` are the numbers of batches of all ranks, None where one is not known; ``tensors``
    makes tensors of what else a batch may hold.
    """
    if 0 not in lengths:
        return batches
    lender = next(rank for rank, length in enumerate(lengths) if length != 0)
    mine = _few(tensors(next(iter(batches)))) if group.rank == lender else None
    batch = sent(group, mine, lender)
    return [batch] if lengths[group.rank] == 0 else batches


def _few(batch: Any) -> Any:
    leaves = [t for t in pytree.tree_leaves(batch) if isinstance(t, Tensor)]
    if len({len(t) if t.ndim else 0 for t in leaves}) != 1:
        return batch
    return _first(batch, LENT)


def _first(batch: Any, samples: int) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t[:samples], batch)


def nothing(data: Any) -> bool:
    """Whether there are no samples; an iterable of unknown length is asked for its first batch."""
    if isinstance(getattr(data, "tensors", None), tuple):
        data = data.tensors
    if data is None:
        return True
    if isinstance(data, Mapping) or (isinstance(data, tuple) and len(data) == 2):
        leaves = [t for t in pytree.tree_leaves(data) if isinstance(t, Tensor)]
        return bool(leaves) and all(t.ndim > 0 and len(t) == 0 for t in leaves)
    if not isinstance(data, Iterable) or isinstance(data, str | Tensor | Iterator):
        return False  # which is refused, or read first
    try:
        return len(data) == 0  # type: ignore[arg-type]
    except TypeError:
        return next(iter(data), _NOTHING) is _NOTHING


_NOTHING = object()


class WithoutPadding:
    """The batches of a loader without the samples that its sampler repeats to even out the ranks.

    A ``DistributedSampler`` gives rank ``r`` of ``p`` the positions ``r, r + p, …``, and goes on
    with samples from the beginning after the last one of the data: the last samples of a rank.
    """

    def __init__(self, loader: DataLoader[Any], samples: int, length: int) -> None:
        self._loader, self._samples, self._length = loader, samples, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        left = self._samples
        for batch in self._loader:
            if left <= 0:
                return
            size = _samples_of(batch)
            yield batch if size <= left else _first(batch, left)
            left -= size


def _samples_of(batch: Any) -> int:
    sizes = {len(t) if t.ndim else 0 for t in pytree.tree_leaves(batch) if isinstance(t, Tensor)}
    if len(sizes) != 1:
        rule = "the samples that a DistributedSampler repeats cannot be told apart in these batches"
        remedy = "let the number of samples be a multiple of the number of ranks"
        raise CurvescopeError("Problem(data)", rule, remedy=remedy)
    return sizes.pop()


def without_padding(data: Any, group: Group) -> Any:
    """The data, as :class:`WithoutPadding` where it comes from a padding sampler."""
    sampler = _sampler(data)
    if sampler is None or group.alone:
        return data
    if (sampler.num_replicas, sampler.rank) != (group.size, group.rank):
        rule = f"the sampler must share the data among the {group.size} ranks of the group"
        given = f"rank {sampler.rank} of {sampler.num_replicas} on rank {group.rank}"
        raise CurvescopeError("Problem(data)", rule, given=given)
    if sampler.drop_last:
        return data
    own = len(range(group.rank, len(sampler.dataset), group.size))  # type: ignore[arg-type]
    if own == len(sampler):
        return data
    size, drops = _batching(data)
    drawn = len(sampler) - len(sampler) % size if drops else len(sampler)
    samples = min(own, drawn)
    return WithoutPadding(data, samples, -(-samples // size))


def _sampler(data: Any) -> DistributedSampler[Any] | None:
    if not isinstance(data, DataLoader):
        return None
    sampler = getattr(data.batch_sampler, "sampler", data.sampler)
    return sampler if isinstance(sampler, DistributedSampler) else None


def _batching(loader: DataLoader[Any]) -> tuple[int, bool]:
    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler:
        rule = "the samples that a DistributedSampler repeats cannot be told apart here"
        remedy = "use a loader with `batch_size`, or a sampler with drop_last=True"
        given = "a batch sampler of its own" if sampler else "a loader without batches"
        raise CurvescopeError("Problem(data)", rule, given=given, remedy=remedy)
    return sampler.batch_size, sampler.drop_last


def of_all(group: Group, mine: list[Any]) -> list[Any]:
    """The batches of all ranks, in their order, on every rank."""
    return [batch for rank in range(group.size) for batch in sent(group, mine, rank)]
