"""Whether the samples of a batch pass through a model without seeing each other, tried out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from curvescope._state import watching
from curvescope.sharpness.tracing.capture import Capture
from curvescope.sharpness.tracing.forward import quiet


def samples_apart(model: nn.Module, X: Any, whole: list[Tensor] | None = None) -> bool:
    """Whether two samples of the batch give their outputs, and their rows of every layer's input.

    A layer whose input counts something else than samples in its first dimension (a sequence that
    comes first, say) is found out too. A model that refuses a part of the batch is taken to need
    all of it; a batch of one sample has nothing to see. Costs a pass of two samples and, unless
    ``whole`` is given, see :func:`passed`, one of the batch.

    >>> samples_apart(nn.Linear(2, 2), torch.eye(2)), samples_apart(nn.Softmax(0), torch.eye(2))
    (True, False)
    """
    total = next(t.shape[0] for t in pytree.tree_leaves(X) if isinstance(t, Tensor))
    if total == 1:
        return True
    few = min(2, total - 1)
    whole = _quiet_pass(model, X) if whole is None else whole
    try:
        part = _quiet_pass(model, pytree.tree_map_only(Tensor, lambda t: t[:few], X))
    except Exception:
        return False
    if len(whole) != len(part):
        return False
    return all(
        b.shape[0] == few and _close(a[:few], b)
        for a, b in zip(whole, part, strict=True)
        if a.shape[0] == total
    )


def passed(capture: Capture, z: Tensor) -> list[Tensor]:
    """What a pass without dropout brought to the layers, in order, and its output."""
    return [*(layer.x.detach() for layer in capture.layers()), z.detach()]


def _quiet_pass(model: nn.Module, X: Any) -> list[Tensor]:
    capture = Capture(model.parameters(), second_order=False)
    with torch.enable_grad(), quiet(model) as call, watching(capture):
        z = call(X)
    return passed(capture, z)


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 1e-3 if a.dtype == torch.float32 else 1e-8
    return a.shape == b.shape and bool((a - b).norm() <= tolerance * a.norm())
