"""Batches taken apart and put together anew where samples do not see each other.

Whether they do is tried out in :mod:`curvescope.problem.independence` for a model as a function,
and by :func:`positions` for the layers inside of it. What is known of a problem is kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope.problem.batches import Batch
from curvescope.problem.independence import take
from curvescope.problem.problem import Problem
from curvescope.record.capture import capture
from curvescope.record.selection import UnsupportedLayer

PROBE = 4
"""Samples on which things are tried out."""


class _Checked:
    """What was tried out for a problem."""

    def __init__(self, _: Problem) -> None:
        self.layers: set[str] = set()  # behind which samples do not see each other


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of the inputs and of the target."""
    return _leaves((batch.inputs, batch.target))


def _leaves(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def choose(batch: Batch, which: slice | Tensor) -> Batch:
    """Some samples of a batch; the first dimension of every tensor is that of the samples."""
    return Batch(take(batch.inputs, which), take(batch.target, which), batch.index)


def join(batches: Sequence[Batch]) -> Batch:
    """Several batches as one."""
    if len(batches) == 1:
        return batches[0]

    def cat(*leaves: Any) -> Any:
        return torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0]

    inputs = pytree.tree_map(cat, *(b.inputs for b in batches))
    return Batch(inputs, pytree.tree_map(cat, *(b.target for b in batches)), batches[0].index)


def samples_given(batch: Batch) -> int | None:
    """The common first dimension of a batch's inputs, if they have one."""
    sizes = {t.shape[0] if t.ndim else None for t in _leaves(batch.inputs)}
    return sizes.pop() if len(sizes) == 1 else None


def first_samples(batch: Batch) -> Batch:
    """A few samples of a batch, to try things out on; the batch itself if it cannot be cut."""
    size = samples_given(batch)
    if size is None:
        return batch

    def cut(t: Tensor) -> Tensor:
        return t[:PROBE] if t.ndim and t.shape[0] == size else t

    inputs, target = pytree.tree_map_only(Tensor, cut, (batch.inputs, batch.target))
    return Batch(inputs, target, batch.index)


# Which rows of a layer belong to a sample --------------------------------------------------------


def positions(
    pull_back: Callable[[Tensor], Sequence[Tensor | None]], z: Tensor, samples: int
) -> tuple[int, ...]:
    """How many rows of each layer belong to a sample: ``m`` consecutive ones, or 0 if it is not so.

    The cotangent of one sample's output, tried for the first two and the last, must vanish exactly
    at the rows of all others. So samples that see each other behind a layer are found out, and so
    is a layer that counts something else first (``[T, N, D]``, or that flattened). Where all of it
    vanishes (a layer behind a weight that is zero) nothing is seen, and the layer must have one row
    for each sample. Cost: three backward passes of few samples.

    Args:
        pull_back: From a cotangent of the output to those of the layers' outputs, ``[rows, …]``.
        z: The output for a few samples, consecutive rows for each.
        samples: How many; at least two.
    """
    rows, remainder = divmod(z.shape[0], samples)
    rows_each: list[int] | None = None
    reached: set[int] = set()
    for sample in sorted({0, 1, samples - 1}):
        u = torch.zeros_like(z)
        cotangent = u[sample * rows : (sample + 1) * rows]
        ramp = torch.linspace(1.0, 2.0, cotangent.numel(), dtype=u.dtype, device=u.device)
        cotangent.copy_(ramp.reshape(cotangent.shape))
        errors = pull_back(u)
        if rows_each is None:
            rows_each = [0 if e is None or remainder else _rows(e, samples) for e in errors]
        for i, e in enumerate(errors):
            if e is None or not rows_each[i]:
                continue
            parts = (e.unflatten(0, (samples, rows_each[i])) != 0).flatten(1).any(1)
            if bool(parts[sample]):
                reached.add(i)
            parts[sample] = False
            if bool(parts.any()):
                rows_each[i] = 0
    return tuple(m if m == 1 or i in reached else 0 for i, m in enumerate(rows_each or ()))


def _rows(e: Tensor, samples: int) -> int:
    rows, remainder = divmod(e.shape[0] if e.ndim else 0, samples)
    return 0 if remainder else rows


def check_samples(problem: Problem, batch: Batch, layers: Sequence[str]) -> None:
    """Refuse layers whose samples see each other, tried out on a few samples, once per problem.

    The output of a sample must not depend on what the layer computes for the others, see
    :func:`positions`.
    """
    checked = problem.companion(_Checked).layers
    unknown = [name for name in layers if name not in checked]
    if not unknown:
        return
    few = capture(problem, first_samples(batch), unknown)
    if few.samples < 2:
        return

    with few.backward() as pull_back:

        def errors(u: Tensor) -> list[Tensor]:
            pulled = pull_back(u, False)
            return [few.layers[name].rows_first(pulled[name], few.samples) for name in unknown]

        rows_of_layers = positions(errors, few.output, few.samples)
    for name, rows in zip(unknown, rows_of_layers, strict=True):
        if not rows:
            raise UnsupportedLayer(
                "layers",
                f"the samples of a batch see each other behind layer {name!r}, or are not its "
                "first dimension",
                remedy="batch norm needs mode='eval' and running statistics",
            )
        checked.add(name)


def pieces(problem: Problem, batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in pieces of ``size`` samples, or whole where its samples see each other."""
    if (samples_given(batch) or size + 1) <= size or not problem.samples_apart(batch):
        yield batch
        return
    for start in range(0, tensors(batch)[0].shape[0], size):
        yield choose(batch, slice(start, start + size))
