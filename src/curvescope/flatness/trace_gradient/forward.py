"""Forward passes of a model: as it is, or with its buffers and flags left unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from curvescope._state import exclusive, held
from curvescope.errors import CurvescopeError
from curvescope.flatness.trace_gradient.signs import Signs
from curvescope.problem.calling import call_with, output_of


def run(model: Callable[..., Any], inputs: Any) -> Tensor:
    """The model's output; tuples are positional arguments, mappings keyword arguments."""
    if isinstance(inputs, Mapping):
        result = model(**inputs)
    elif isinstance(inputs, tuple | list):
        result = model(*inputs)
    else:
        result = model(inputs)
    return output_of("TraceRegularizer(model)", result)


@contextmanager
def frozen_calls(model: nn.Module) -> Iterator[Callable[..., Tensor]]:
    """A function that runs the model without dropout and writes to no buffer of it.

    Normalization layers keep their mode, everything else is in eval mode; flags are restored at the
    end. The function takes the inputs and, by name, weights to use instead of the model's.
    """

    def call(inputs: Any, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        state = {name: b.clone() for name, b in model.named_buffers()} | dict(weights or {})
        return run(lambda *args, **kwargs: call_with(model, state, args, kwargs), inputs)

    with held(model, "norms as they are"):
        yield call


def batch_norms_train(model: nn.Module) -> bool:
    """Whether some batch norm uses the statistics of the batch.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> batch_norms_train(model.train()), batch_norms_train(model.eval())
    (True, False)
    """
    with exclusive(model):
        return any(
            isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)
            for m in model.modules()
        )


def trainable(where: str, model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require grad, of which there must be one."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise CurvescopeError(where, "no parameter of the model requires grad")
    return parameters


def samples_of(X: Any) -> int:
    """The number of samples of a batch: the first dimension of its first tensor."""
    return next((t.shape[0] for t in _leaves(X) if t.ndim), 1)


def _leaves(X: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(X) if isinstance(t, Tensor)]


def take(X: Any, y: Any, samples: int, stream: Signs) -> tuple[Any, Any]:
    """``samples`` samples of a batch, drawn without replacement; all if it has no more.

    >>> import torch
    >>> X, y = torch.arange(10).reshape(5, 2), torch.arange(5)
    >>> a, b = take(X, y, 3, Signs(torch.Generator().manual_seed(0)))
    >>> a.shape, bool((a[:, 0] == 2 * b).all())
    (torch.Size([3, 2]), True)
    """
    total, device = samples_of(X), next(t.device for t in _leaves(X))
    if samples >= total:
        return X, y
    order = stream.choose(total, samples, device)

    def pick(t: Tensor) -> Tensor:
        return t[order]

    return pytree.tree_map_only(Tensor, pick, X), pytree.tree_map_only(Tensor, pick, y)
