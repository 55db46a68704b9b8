"""Validators: each returns the normalized value or raises one sentence.

An error says where, the rule, what was given and the remedy. Misuse of the library raises
:class:`CurvescopeError` (a ``ValueError``), so that a caller can tell it from a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:  # the command line needs the errors before torch, which takes a second or two
    import torch
    from torch import Tensor

NOT_FINITE = "may be infinite or NaN"
AnyFloat = Annotated[float, NOT_FINITE]
"""A number of a result that need not be finite; a plain ``float`` is finite wherever it is stored.
"""


class CurvescopeError(ValueError):
    """The input breaks a stated rule; the message says which one and what to do."""


class ModelError(CurvescopeError):
    """The model cannot be differentiated as asked; the message names the module or operation."""


class Inapplicable(CurvescopeError):
    """A method does not apply to this model, loss or data: it will not on another day either."""


class MemoryLimitError(CurvescopeError):
    """The work does not fit into the memory that is free; it may fit later, or elsewhere."""


def one_of(where: str, name: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    allowed = list(choices)
    if value not in allowed:
        msg = f"{where}: {name} must be one of {', '.join(map(repr, allowed))}, got {value!r}"
        raise CurvescopeError(msg)
    return value


def positive_int(where: str, name: str, value: int, minimum: int = 1) -> int:
    """Return ``value`` as an int that is at least ``minimum``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < minimum:
        msg = f"{where}: {name} must be an integer of at least {minimum}, got {value!r}"
        raise CurvescopeError(msg)
    return int(value)


def finite_float(where: str, name: str, value: float, minimum: float | None = None) -> float:
    """Return ``value`` as a finite float, at least ``minimum`` where one is given."""
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        msg = f"{where}: {name} must be a finite number, got {value!r}"
        raise CurvescopeError(msg)
    if minimum is not None and number < minimum:
        msg = f"{where}: {name} must be at least {minimum}, got {value!r}"
        raise CurvescopeError(msg)
    return number


def generator(where: str, value: torch.Generator | None) -> torch.Generator:
    """Return the generator; there is no default, because a hidden seed is a hidden choice."""
    import torch

    if not isinstance(value, torch.Generator):
        msg = (
            f"{where}: generator must be a torch.Generator, got {type(value).__name__}; "
            "make one with torch.Generator().manual_seed(0)"
        )
        raise CurvescopeError(msg)
    return value


def columns(where: str, x: Tensor, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``x`` if it is a vector ``[rows]`` or a block ``[rows, k]`` that fits an operator."""
    from torch import Tensor

    if not isinstance(x, Tensor):
        msg = f"{where}: needs a torch.Tensor, got {type(x).__name__}; use torch.as_tensor(...)"
        raise CurvescopeError(msg)
    if x.ndim not in (1, 2) or x.shape[0] != rows:
        msg = f"{where}: needs a vector [{rows}] or a block [{rows}, k], got {list(x.shape)}"
        raise CurvescopeError(msg)
    if x.dtype != dtype:
        msg = f"{where}: needs {dtype}, got {x.dtype}; convert with x.to({dtype})"
        raise CurvescopeError(msg)
    if x.device != device:
        msg = f"{where}: lives on {device}, the vector on {x.device}; move it with x.to('{device}')"
        raise CurvescopeError(msg)
    return x


def all_finite(where: str, *tensors: Tensor) -> None:
    """Refuse results that have left the range of their type."""
    for tensor in tensors:
        if not bool(tensor.isfinite().all()):
            msg = (
                f"{where}: numbers overflow in {str(tensor.dtype).removeprefix('torch.')}; rescale "
                "the inputs, or convert model and data with .double()"
            )
            raise CurvescopeError(msg)
