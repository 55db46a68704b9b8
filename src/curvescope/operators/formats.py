"""Vectors in other formats than tensors: NumPy arrays, tensors in the parameters' shapes, SciPy.

What comes in as one of these goes out as the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from curvescope._state import without_gradients
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    import scipy.sparse.linalg

    from curvescope.operators.base import LinearOperator
    from curvescope.problem.params import ParamSpace


def translated(A: LinearOperator, x: Any) -> Any:
    """``A @ x`` for a vector that is no tensor."""
    where = f"{A} @ x"
    if isinstance(x, np.ndarray):
        return (A @ torch.as_tensor(x).to(A.device, A.dtype)).cpu().numpy()
    space = A.parameters if isinstance(x, Mapping | Sequence) and not isinstance(x, str) else None
    if space is None:
        rule = "needs a torch.Tensor or a NumPy array"
        raise CurvescopeError(where, rule, given=type(x).__name__, remedy="use torch.as_tensor(x)")
    if isinstance(x, Mapping):
        return space.unflatten(A @ space.flatten(_of_space(where, space, x)))
    if len(x) != len(space.names):
        rule = f"needs a tensor for each of the {len(space.names)} parameters"
        raise CurvescopeError(where, rule, given=len(x))
    named = _of_space(where, space, dict(zip(space.names, x, strict=True)))
    return list(space.unflatten(A @ space.flatten(named)).values())


def _of_space(where: str, space: ParamSpace, x: Mapping[str, Any]) -> Mapping[str, Tensor]:
    for name, shape in space.shapes.items():
        t = x.get(name)
        if not isinstance(t, Tensor) or t.shape != shape:
            given = list(t.shape) if isinstance(t, Tensor) else type(t).__name__
            raise CurvescopeError(where, f"{name} needs a tensor {list(shape)}", given=given)
    return {name: x[name].detach() for name in space.names}


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """A type of numbers as NumPy names it."""
    return torch.empty(0, dtype=dtype).numpy().dtype


def _on_arrays(A: LinearOperator, apply: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """A product of ``A`` as a function of arrays."""

    def call(x: Any) -> Any:
        tensor = torch.as_tensor(x).to(A.device, A.dtype)
        with without_gradients():
            y = apply(tensor if tensor.ndim == 2 else tensor[:, None])
        return (y if tensor.ndim == 2 else y[:, 0]).cpu().numpy()

    return call


def to_scipy(A: LinearOperator) -> scipy.sparse.linalg.LinearOperator:
    """See :meth:`curvescope.operators.base.LinearOperator.to_scipy`."""
    import scipy.sparse.linalg

    many = A.for_many()
    forward, adjoint = _on_arrays(A, many._matmat), _on_arrays(A, many._rmatmat)
    dtype = numpy_dtype(A.dtype)
    return scipy.sparse.linalg.LinearOperator(
        A.shape, forward, rmatvec=adjoint, matmat=forward, rmatmat=adjoint, dtype=dtype
    )
