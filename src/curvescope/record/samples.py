"""Do samples see each other? Batches taken apart and put together anew where they do not.

The question is answered here for the whole package: :func:`apart` for a model as a function,
:func:`positions` for the layers inside of it. What is known of a problem is kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope._checks import CurvescopeError
from curvescope.problem.batches import Batch
from curvescope.problem.problem import MISTAKES, Problem
from curvescope.record.capture import capture
from curvescope.record.selection import UnsupportedLayer

PROBE = 4
"""Samples on which things are tried out."""

_PROBE_TOGETHER = 16  # the same for outputs, where a pass backward is not needed


class _Known:
    """What was tried out for a problem."""

    def __init__(self, _: Problem) -> None:
        self.independent: bool | None = None
        self.layers: set[str] = set()  # behind which samples do not see each other


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of the inputs and of the target."""
    return _leaves((batch.inputs, batch.target))


def _leaves(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def _take(tree: Any, which: slice | Tensor) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t[which], tree)


def choose(batch: Batch, which: slice | Tensor) -> Batch:
    """Some samples of a batch; the first dimension of every tensor is that of the samples."""
    return Batch(_take(batch.inputs, which), _take(batch.target, which), batch.index)


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


# Do samples see each other? ---------------------------------------------------------------------


def apart(run: Callable[[Any], Tensor], batch: Any, together: Tensor | None = None) -> bool | None:
    """Whether the output for a sample is what the model returns without the rest of its batch.

    Tried out on a few samples: the last and the first of them together, in this order, and the
    first one alone must give their parts of the output for all, up to the square root of the
    rounding. Whatever draws on the batch fails this (batch statistics, attention over the batch,
    a sequence in the first dimension), also where no derivative shows it. None where there is one
    sample, which cannot tell. Cost: a pass of 16 samples, and one of three.

    Args:
        run: From a tree of tensors to the output, with one row or several consecutive rows for
            each sample.
        batch: A tree of tensors whose first dimension is that of the samples; if they differ in
            it, samples cannot be taken apart.
        together: The output for all of them, where it is known and they are few.
    """
    lengths = {t.shape[0] if t.ndim else 0 for t in _leaves(batch)}
    if len(lengths) != 1 or 0 in lengths:
        return False
    samples = lengths.pop()
    if together is None:
        samples = min(_PROBE_TOGETHER, samples)
    if samples == 1:
        return None
    if together is None:
        together = run(_take(batch, slice(0, samples)))
    together = together.detach()
    return all(_agrees(run, batch, together, samples, which) for which in ([samples - 1, 0], [0]))


def _agrees(
    run: Callable[[Any], Tensor], batch: Any, together: Tensor, samples: int, which: list[int]
) -> bool:
    try:
        part = run(_take(batch, torch.tensor(which))).detach()
    except torch.OutOfMemoryError:
        raise
    except (CurvescopeError, *MISTAKES):  # the model refuses so few samples
        return False
    each, left = divmod(together.shape[0] if together.ndim else 0, samples)
    if left or not each or part.shape != (len(which) * each, *together.shape[1:]):
        return False
    expected = together.unflatten(0, (samples, each))[which].flatten(0, 1)
    tolerance = torch.finfo(part.dtype).eps ** 0.5
    return bool((part - expected).norm() <= tolerance * expected.norm())


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
    each, left = divmod(z.shape[0], samples)
    found: list[int] | None = None
    seen: set[int] = set()
    for sample in sorted({0, 1, samples - 1}):
        u = torch.zeros_like(z)
        own = u[sample * each : (sample + 1) * each]
        ramp = torch.linspace(1.0, 2.0, own.numel(), dtype=u.dtype, device=u.device)
        own.copy_(ramp.reshape(own.shape))
        errors = pull_back(u)
        if found is None:
            found = [0 if e is None or left else _rows(e, samples) for e in errors]
        for i, e in enumerate(errors):
            if e is None or not found[i]:
                continue
            parts = (e.unflatten(0, (samples, found[i])) != 0).flatten(1).any(1)
            if bool(parts[sample]):
                seen.add(i)
            parts[sample] = False
            if bool(parts.any()):
                found[i] = 0
    return tuple(m if m == 1 or i in seen else 0 for i, m in enumerate(found or ()))


def _rows(e: Tensor, samples: int) -> int:
    rows, left = divmod(e.shape[0] if e.ndim else 0, samples)
    return 0 if left else rows


def independent(problem: Problem, batch: Batch) -> bool:
    """Whether samples of this problem do not see each other, see :func:`apart`; tried out once."""
    known = problem.companion(_Known)
    if known.independent is not None:
        return known.independent
    if problem.mode != "eval":
        return False
    variables = problem.variables()

    def run(tree: Any) -> Tensor:
        with problem.evaluation():
            return problem.output(variables, Batch(tree[0], tree[1], batch.index))

    known.independent = apart(run, (batch.inputs, batch.target))
    return known.independent is not False  # one sample alone says nothing


def check_samples(problem: Problem, batch: Batch, layers: Sequence[str]) -> None:
    """Refuse layers whose samples see each other, tried out on a few samples, once per problem.

    The output of a sample must not depend on what the layer computes for the others, see
    :func:`positions`.
    """
    known = problem.companion(_Known).layers
    unknown = [name for name in layers if name not in known]
    if not unknown:
        return
    few = capture(problem, first_samples(batch), unknown)
    if few.samples < 2:
        return

    def pull_back(u: Tensor) -> list[Tensor]:
        pulled = few.pull_back(u)
        return [few.layers[name].rows_first(pulled[name], few.samples) for name in unknown]

    for name, rows in zip(unknown, positions(pull_back, few.output, few.samples), strict=True):
        if not rows:
            raise UnsupportedLayer(
                "layers",
                f"the samples of a batch see each other behind layer {name!r}, or are not its "
                "first dimension",
                remedy="batch norm needs mode='eval' and running statistics",
            )
        known.add(name)


def pieces(problem: Problem, batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in pieces of ``size`` samples, or whole where its samples see each other."""
    if not independent(problem, batch):
        yield batch
        return
    for start in range(0, tensors(batch)[0].shape[0], size):
        yield choose(batch, slice(start, start + size))
