"""Whether ``tr H = tr G`` for a model, from a recorded pass of a few samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from curvescope._state import exclusive, watching
from curvescope.errors import CurvescopeError
from curvescope.flatness.trace_gradient.capture import Capture
from curvescope.flatness.trace_gradient.forward import frozen_calls
from curvescope.problem.batches import Batch
from curvescope.problem.losses import Loss
from curvescope.problem.problem import Problem
from curvescope.record.piecewise import PiecewiseLinear
from curvescope.record.samples import first_samples, tensors


def functions_of_piecewise_affine(
    model: nn.Module, loss: Loss, X: Any, y: Any
) -> frozenset[Callable[..., Any]] | None:
    """The functions of torch that a model runs, if all that follows its parameters is so.

    Read off a recorded pass (:mod:`curvescope.record.piecewise`); every parameter must be used
    once. None otherwise, and for models that cannot be recorded. A pass that runs other functions
    than these may be of another kind. Cost: a few passes of a few samples.

    >>> from curvescope.problem.losses import MeanSquare
    >>> X, y = torch.ones(3, 2), torch.zeros(3, 1)
    >>> for activation in (nn.ReLU(), nn.Tanh()):
    ...     model = nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 1))
    ...     functions_of_piecewise_affine(model, MeanSquare(), X, y) is None
    False
    True
    """
    if _statistics_of_batch(model):
        return None
    batch = Batch(X, y, 0)
    sizes = {t.shape[0] if t.ndim else 0 for t in tensors(batch)}
    few = first_samples(batch) if len(sizes) == 1 else batch
    with (
        frozen_calls(model) as call,
        watching(Capture(model.parameters(), second_order=False)) as trial,
    ):
        call(few.inputs)
    if trial.shared:
        return None
    device = next(iter(tensors(few))).device.type
    try:
        with torch.autocast(device, enabled=False):
            problem = Problem(model, [(few.inputs, few.target)], loss=loss)
            affine = PiecewiseLinear(problem).behind_each_layer(problem, problem.params)
    except torch.OutOfMemoryError:
        raise
    except CurvescopeError:  # the model is refused by Problem
        return None
    return frozenset(trial.functions) if affine else None


def _statistics_of_batch(model: nn.Module) -> bool:
    """Whether some norm takes its statistics from its input, which a problem in eval mode hides."""
    with exclusive(model):
        norms = [m for m in model.modules() if isinstance(m, _NormBase)]
        return any(norm.training or norm.running_mean is None for norm in norms)
