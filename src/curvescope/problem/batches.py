"""Data in its usual forms, as a deterministic sequence of batches on the model's device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, RandomSampler

from curvescope.errors import CurvescopeError
from curvescope.identity import Writes, digest, row_digests
from curvescope.problem import shards
from curvescope.problem.passes import Passes
from curvescope.problem.soundness import check_batch
from curvescope.ranks import Group


@dataclass(frozen=True)
class Batch:
    """The inputs of a model and the targets of the loss, with the batch's position."""

    inputs: Any
    target: Any
    index: int


class Batches:
    """A sequence of batches that can be walked any number of times.

    ``(X, y)``, or anything with such a pair as ``.tensors`` (a data set of ours or torch's
    ``TensorDataset``), is one batch, cut into pieces of ``batch_size`` samples when one is given; a
    ``DataLoader`` or any other iterable gives pairs ``(input, target)`` or mappings with the target
    under ``"labels"``. Inputs may be tensors, tuples or mappings of tensors. An iterator, which
    could be walked only once, is read into memory.

    With a ``group`` they are the batches of this rank, numbered as in the whole; None, or data
    without samples, on a rank that has none. Samples that a ``DistributedSampler`` repeats are left
    out.
    """

    def __init__(
        self,
        data: Any,
        device: torch.device,
        batch_size: int | None,
        dtype: torch.dtype,
        group: Group | None = None,
    ) -> None:
        self._device, self._dtype = device, dtype
        self.group = Group.of(None) if group is None else group
        self.targets: list[Any] = []  # of data given whole, as tensors
        if isinstance(getattr(data, "tensors", None), tuple):
            data = data.tensors
        if isinstance(data, tuple | Mapping):
            data = self._tensors(data)
        if not self.group.alone and shards.nothing(data):
            self._data: Iterable[Any] = []
        elif isinstance(data, Mapping) or (
            isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor)
        ):
            inputs, target = _pair(data)
            check_batch(inputs, target, 0)
            self._data = _cut(inputs, target, batch_size)
            self.targets = [target]
        elif isinstance(data, Iterable) and not isinstance(data, str | Tensor):
            self._data = list(data) if isinstance(data, Iterator) else data
            self._data = shards.without_padding(self._data, self.group)
        else:
            rule = "needs (X, y), a DataLoader or an iterable of (input, target) batches"
            raise CurvescopeError("Problem(data)", rule, given=type(data).__name__)
        try:
            self.length: int | None = len(self._data)  # type: ignore[arg-type]
        except TypeError:
            self.length = None
        if self.group.alone and self.length == 0:
            raise _empty()
        self._meet()
        fixed = isinstance(self._data, list | tuple)  # the same tensors in every pass
        self._passes = None if fixed else Passes()
        leaves = pytree.tree_leaves(list(self._data)) if fixed else []
        self._writes = Writes([leaf for leaf in leaves if isinstance(leaf, Tensor)])

    def _meet(self) -> None:
        """Learn what the other ranks have, and borrow where this one has nothing.

        ``counts`` is False on a rank without data: it computes with a few samples of another one,
        so that it takes part in everything, and adds nothing. ``start`` is the number of the first
        batch in the whole, None where a rank does not know how many it has.
        """
        self.counts = True
        self.start: int | None = 0
        if self.group.alone:
            return
        if self.length is None and shards.nothing(self._data):
            self.length = 0
        lengths = self.group.plain_of_all(self.length)
        if not any(length != 0 for length in lengths):
            raise _empty()
        before = lengths[: self.group.rank]
        self.start = None if None in before else sum(before)
        self._data = shards.lent(self.group, self._data, lengths, self._tensors)
        self.counts, self.length = self.length != 0, self.length or 1

    def of_all(self) -> list[Batch]:
        """The batches of all ranks, in their order, on every rank."""
        if self.group.alone:
            return list(self)
        mine = [(batch.inputs, batch.target) for batch in self] if self.counts else []
        everything = shards.of_all(self.group, mine)
        return [
            Batch(self._move(inputs), self._move(target), index)
            for index, (inputs, target) in enumerate(everything)
        ]

    @property
    def shuffles(self) -> bool:
        """Whether the data comes from a loader that draws its order at random."""
        return isinstance(self._data, DataLoader) and isinstance(
            getattr(self._data, "sampler", None), RandomSampler
        )

    def unwritten(self) -> bool:
        """Whether data given as tensors are unchanged, as far as :class:`Writes` can see."""
        return self._writes.none()

    def __iter__(self) -> Iterator[Batch]:
        return self.walk()

    def walk(self, *, copied: bool = False) -> Iterator[Batch]:
        """The batches; ``copied`` to memory that the caller's data do not share."""
        nothing = True
        notes: list[Tensor] = []
        for index, item in enumerate(self._data, self.start or 0):
            nothing = False
            inputs, target = _pair(self._tensors(item))
            check_batch(inputs, target, index)
            batch = Batch(self._move(inputs, copied), self._move(target, copied), index)
            if self._passes is not None:
                notes.append(self._passes.note((batch.inputs, batch.target)))
            yield batch
        if nothing:
            raise _empty()
        self._hold(notes)

    def _hold(self, notes: list[Tensor]) -> None:
        if self._passes is not None and not self._passes.same(notes):
            rule = f"two passes over the data disagree: {self.why_passes_differ()}"
            raise CurvescopeError("Problem(data)", rule)

    def is_first(self, batch: Batch) -> bool:
        """Whether it is the first one of this rank."""
        return batch.index == (self.start or 0)

    @property
    def rebatched(self) -> bool:
        """Whether a later pass had the samples of the first one in other batches."""
        return self._passes is not None and self._passes.rebatched

    def why_passes_differ(self) -> str:
        """The likely cause where two passes have different samples."""
        if self.shuffles:
            return "the loader shuffles and its samples change (random augmentation?)"
        return "the data changes between passes (random augmentation or a consumed stream?)"

    def digests(self) -> tuple[str, str]:
        """Two digests of the contents: of the samples in any order, and of the batches in order.

        A sample is a row of all tensors of a batch; a batch whose tensors differ in their first
        dimension is one piece. Cost: one pass over the data. In a group they are those of the data
        of all ranks, the first one the same however these lie on them.
        """
        samples: list[str] = []
        batches: list[str] = []
        notes: list[Tensor] = []
        for item in self._data:
            inputs, target = _pair(self._tensors(item))
            rows = _sample_digests(inputs, target)
            samples += rows
            batches.append(digest(rows))
            if self._passes is not None:
                notes.append(self._passes.note((self._move(inputs), self._move(target))))
        if notes:
            self._hold(notes)
        everywhere = self.group.plain_of_all([samples, batches] if self.counts else [[], []])
        samples = [each for of_rank, _ in everywhere for each in of_rank]
        batches = [each for _, of_rank in everywhere for each in of_rank]
        return digest(sorted(samples)), digest(batches)

    def _tensors(self, item: Any) -> Any:
        """A batch with copies of its NumPy arrays as tensors, real numbers in the model's type."""

        def convert(array: np.ndarray[Any, Any]) -> Tensor:
            if array.dtype.kind == "f":
                return torch.tensor(array, dtype=self._dtype)
            return torch.tensor(array, dtype=torch.int64 if array.dtype.kind in "iu" else None)

        tree = dict(item) if isinstance(item, Mapping) else item
        arrays = any(isinstance(leaf, np.ndarray) for leaf in pytree.tree_leaves(tree))
        return pytree.tree_map_only(np.ndarray, convert, tree) if arrays else item

    def _move(self, tree: Any, copied: bool = False) -> Any:
        def move(t: Tensor) -> Tensor:
            moved = _usable(t).to(self._device, non_blocking=True)
            return moved.clone() if copied and t.device == self._device else moved

        return pytree.tree_map_only(Tensor, move, tree)


def _usable(t: Tensor) -> Tensor:
    """The tensor without its graph; copied if made in ``torch.inference_mode``."""
    return t.clone() if t.is_inference() else t.detach()


def _empty() -> CurvescopeError:
    return CurvescopeError(
        "Problem(data)", "the data is empty", remedy="at least one sample is needed"
    )


def _sample_digests(inputs: Any, target: Any) -> list[str]:
    leaves = pytree.tree_leaves_with_path((inputs, target))
    names = [pytree.keystr(path) for path, _ in leaves]
    tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor)]
    others = [leaf for _, leaf in leaves if not isinstance(leaf, Tensor)]
    lengths = {len(tensor) if tensor.ndim else None for tensor in tensors}
    if len(lengths) != 1 or None in lengths:
        return [digest(names, others, tensors)]
    return [digest(names, others, row) for row in row_digests(tensors)]


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        if "labels" not in item:
            rule = "a mapping needs the key 'labels' for its target"
            raise CurvescopeError("Problem(data)", rule, given=list(item))
        return {k: v for k, v in item.items() if k != "labels"}, item["labels"]
    if isinstance(item, tuple | list) and len(item) == 2:
        inputs, target = (dict(p) if isinstance(p, Mapping) else p for p in item)
        return (
            inputs,
            target,
        )  # torch.utils._pytree treats other mappings, such as a tokenizer's, as leaves
    rule = "each batch must be a pair (input, target)"
    raise CurvescopeError("Problem(data)", rule, given=type(item).__name__)


def _cut(inputs: Any, target: Any, batch_size: int | None) -> list[tuple[Any, Any]]:
    leaves = pytree.tree_leaves((inputs, target))
    lengths = [int(t.shape[0]) for t in leaves if isinstance(t, Tensor) and t.ndim]
    if len(set(lengths)) != 1:
        rule = "inputs and targets must have the same number of samples"
        raise CurvescopeError(
            "Problem(data)", rule, given=", ".join(map(str, lengths)) or "no tensor"
        )
    samples = lengths[0]
    if samples == 0:
        raise _empty()
    size = samples if batch_size is None else batch_size
    pieces = []
    for start in range(0, samples, size):
        cut = lambda t, a=start: t[a : a + size]  # noqa: E731
        pieces.append(
            (pytree.tree_map_only(Tensor, cut, inputs), pytree.tree_map_only(Tensor, cut, target))
        )
    return pieces
