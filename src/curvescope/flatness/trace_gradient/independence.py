"""Which rows of a layer belong to which sample, in a model of any kind, tried out."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from curvescope._state import differentiable, watching
from curvescope.flatness.trace_gradient.capture import Capture
from curvescope.flatness.trace_gradient.forward import batch_norms_train, quiet, samples_of
from curvescope.flatness.trace_gradient.pullback import pull_back
from curvescope.record.samples import apart, positions

_FEW = 2
_known: WeakKeyDictionary[nn.Module, tuple[tuple[bool, ...], tuple[int, ...]]] = WeakKeyDictionary()


def rows_per_sample(model: nn.Module, X: Any) -> tuple[int, ...]:
    """For each layer that a pass goes through, how many consecutive rows belong to a sample.

    0 where it is not so (a layer that counts something else first), and nothing at all where
    samples see each other, or where the batch is one sample: the gradients of such layers are taken
    for the whole batch, which is right for every model. Tried out once for every model, at the cost
    of a few passes of a few samples; batch norms are looked at every time.

    >>> import torch
    >>> rows_per_sample(nn.Linear(2, 2), torch.eye(2))
    (1,)
    >>> rows_per_sample(nn.Sequential(nn.Linear(2, 2), nn.Softmax(0)), torch.eye(2))
    ()
    """
    if batch_norms_train(model):
        return ()
    variables = tuple(p.requires_grad for p in model.parameters())
    before, rows = _known.get(model, ((), ()))
    if before != variables:
        tried = _try_out(model, X)
        if tried is None:
            return ()
        _known[model] = variables, (rows := tried)
    return rows


def _try_out(model: nn.Module, X: Any) -> tuple[int, ...] | None:
    """None where one sample cannot tell."""
    few = pytree.tree_map_only(Tensor, lambda t: t[:_FEW], X)
    samples = samples_of(few)
    with differentiable(), quiet(model) as call:
        variables = [p for p in model.parameters() if p.requires_grad]
        with watching(Capture(variables, second_order=False)) as capture:
            z = call(few)
        separate = apart(call, few, z)
    if not separate or not capture.layers():
        return None if separate is None else ()
    return positions(lambda u: pull_back(capture, z, u, create_graph=False)[0], z, samples)
