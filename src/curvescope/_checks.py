"""Validators: each returns the normalized value or raises one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from curvescope.errors import CurvescopeError, mention

if TYPE_CHECKING:  # the command line needs the errors before torch, which takes a second or two
    import torch
    from torch import Tensor

NOT_FINITE = "may be infinite or NaN"
AnyFloat = Annotated[float, NOT_FINITE]
"""A number of a result that need not be finite; a plain ``float`` is finite wherever it is stored.
"""


def one_of(where: str, name: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    allowed = list(choices)
    if value not in allowed:
        rule = f"{mention(name)} must be one of {', '.join(map(repr, allowed))}"
        raise CurvescopeError(where, rule, given=repr(value))
    return value


def positive_int(where: str, name: str, value: int, minimum: int = 1) -> int:
    """Return ``value`` as an int that is at least ``minimum``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        rule = f"{mention(name)} must be an integer of at least {minimum}"
        raise CurvescopeError(where, rule, given=repr(value))
    return int(value)


def finite_float(where: str, name: str, value: float, minimum: float | None = None) -> float:
    """Return ``value`` as a finite float, at least ``minimum`` where one is given."""
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        rule = f"{mention(name)} must be a finite number"
        raise CurvescopeError(where, rule, given=repr(value))
    if minimum is not None and number < minimum:
        rule = f"{mention(name)} must be at least {minimum}"
        raise CurvescopeError(where, rule, given=repr(value))
    return number


def is_number(value: object) -> bool:
    """Whether this is a real number: Python's, NumPy's, or a tensor of no dimension."""
    if isinstance(value, bool | str) or getattr(value, "ndim", 0) != 0:
        return False
    return isinstance(value, int | float) or hasattr(value, "__float__")


def generator(where: str, value: torch.Generator | None) -> torch.Generator:
    """Return the generator; there is no default, because a hidden seed is a hidden choice."""
    import torch

    if not isinstance(value, torch.Generator):
        raise CurvescopeError(
            where,
            "`generator` must be a torch.Generator",
            given=type(value).__name__,
            remedy="make one with torch.Generator().manual_seed(0)",
        )
    return value


def columns(where: str, x: Tensor, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``x`` if it is a vector ``[rows]`` or a block ``[rows, k]`` that fits an operator."""
    from torch import Tensor

    if not isinstance(x, Tensor):
        raise CurvescopeError(
            where,
            "needs a torch.Tensor",
            given=type(x).__name__,
            remedy="use torch.as_tensor(...)",
        )
    if x.ndim not in (1, 2) or x.shape[0] != rows:
        rule = f"needs a vector [{rows}] or a block [{rows}, k]"
        raise CurvescopeError(where, rule, given=list(x.shape))
    return _of_operator(where, x, dtype, device)


def rows(where: str, x: Tensor, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``x`` if it is a block of rows ``[k, count]`` that fits an operator."""
    if x.ndim != 2 or x.shape[1] != count:
        rule = f"needs a block of rows [k, {count}]"
        raise CurvescopeError(where, rule, given=list(x.shape))
    return _of_operator(where, x, dtype, device)


def _of_operator(where: str, x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    if x.dtype != dtype:
        remedy = f"convert with x.to({dtype})"
        raise CurvescopeError(where, f"needs {dtype}", given=x.dtype, remedy=remedy)
    if x.device != device:
        rule = f"lives on {device}, the vector on {x.device}"
        raise CurvescopeError(where, rule, remedy=f"move it with x.to('{device}')")
    return x


def finite(tensor: Tensor) -> bool:
    """Whether all entries are finite.

    A sum is finite only where all its terms are, and takes a thirtieth of the time of asking each
    of them, which is left for sums that overflow.

    >>> import torch
    >>> finite(torch.tensor([3e38, 3e38])), finite(torch.tensor([float("inf"), -float("inf")]))
    (True, False)
    """
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def all_finite(where: str, *tensors: Tensor) -> None:
    """Refuse results that have left the range of their type."""
    for tensor in tensors:
        if not finite(tensor):
            raise CurvescopeError(
                where,
                f"numbers overflow in {str(tensor.dtype).removeprefix('torch.')}",
                remedy="rescale the inputs, or convert model and data with .double()",
            )
