"""Whether a model's output for a sample depends on the rest of its batch, from a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from curvescope.errors import CurvescopeError
from curvescope.problem.calling import MISTAKES

PROBE = 16  # samples of the trial


def apart(run: Callable[[Any], Tensor], batch: Any, together: Tensor | None = None) -> bool | None:
    """Whether the output for a sample is the same without the rest of its batch.

    The trial compares the output for up to 16 samples with that for the last and the first of them,
    in this order, and for the first alone; they must agree up to ``√eps``. Every dependence on the
    batch fails this (batch statistics, attention over the batch, a sequence in the first
    dimension), also one without a derivative. None for a single sample. Cost: a pass of 16 samples,
    and two of three samples together.

    Args:
        run: From a tree of tensors to the output, with one row or several consecutive rows for
            each sample.
        batch: A tree of tensors whose first dimension is that of the samples; if they differ in
            it, the answer is False.
        together: The output for all samples of a small batch, if computed already.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    lengths = {t.shape[0] if t.ndim else 0 for t in tensors}
    if len(lengths) != 1 or 0 in lengths:
        return False
    samples = lengths.pop()
    if together is None:
        samples = min(PROBE, samples)
    if samples == 1:
        return None
    if together is None:
        together = run(take(batch, slice(0, samples)))
    together = together.detach()
    return all(_agrees(run, batch, together, samples, which) for which in ([samples - 1, 0], [0]))


def take(tree: Any, which: slice | Tensor) -> Any:
    """Some samples of a tree of tensors."""
    return pytree.tree_map_only(Tensor, lambda t: t[which], tree)


def _agrees(
    run: Callable[[Any], Tensor], batch: Any, together: Tensor, samples: int, which: list[int]
) -> bool:
    try:
        part = run(take(batch, torch.tensor(which))).detach()
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
