"""Batches taken apart into their samples and put together anew, where samples are independent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope._checks import CurvescopeError
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem

_PROBE = 16  # samples on which independence is tried out
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-7}


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of the inputs and of the target."""
    leaves = pytree.tree_leaves((batch.inputs, batch.target))
    return [t for t in leaves if isinstance(t, Tensor)]


def choose(batch: Batch, which: slice | Tensor) -> Batch:
    """Some samples of a batch; the first dimension of every tensor is that of the samples."""
    take = lambda t: t[which]  # noqa: E731
    inputs = pytree.tree_map_only(Tensor, take, batch.inputs)
    return Batch(inputs, pytree.tree_map_only(Tensor, take, batch.target), batch.index)


def join(batches: Sequence[Batch]) -> Batch:
    """Several batches as one."""
    if len(batches) == 1:
        return batches[0]

    def cat(*leaves: Any) -> Any:
        return torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0]

    inputs = pytree.tree_map(cat, *(b.inputs for b in batches))
    return Batch(inputs, pytree.tree_map(cat, *(b.target for b in batches)), batches[0].index)


def independent(problem: Problem, batch: Batch) -> bool:
    """Whether samples of this problem do not see each other, tried out on one batch, once.

    The output of one sample must be what the model returns for it alone. Batch norm with batch
    statistics fails this, as does a model that looks at its whole batch.
    """
    known: bool | None = problem.cache.get("independent samples")
    if known is None:
        known = _try_out(problem, batch)
        if len(tensors(batch)[0]) > 1:  # one sample alone says nothing
            problem.cache["independent samples"] = known
    return known


def _try_out(problem: Problem, batch: Batch) -> bool:
    lengths = {t.shape[0] if t.ndim else 0 for t in tensors(batch)}
    if problem.mode != "eval" or len(lengths) != 1:
        return False
    variables = problem.variables()
    try:
        with problem.evaluation():
            together = problem.output(variables, choose(batch, slice(0, _PROBE))).detach()
            alone = problem.output(variables, choose(batch, slice(0, 1))).detach()
    except CurvescopeError:  # the model refuses a single sample
        return False
    expected = (min(_PROBE, lengths.pop()), *alone.shape[1:])
    if alone.shape[:1] != (1,) or together.shape != expected:
        return False
    return bool((together[:1] - alone).norm() <= _TOLERANCE[problem.dtype] * alone.norm())


def pieces(problem: Problem, batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in pieces of ``size`` samples, or whole where its samples see each other."""
    if not independent(problem, batch):
        yield batch
        return
    for start in range(0, tensors(batch)[0].shape[0], size):
        yield choose(batch, slice(start, start + size))
