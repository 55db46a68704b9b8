"""Progress and status of every long estimate, and the four keywords that control it.

``progress``
    a callable that receives a :class:`Progress` after every step;
``on_interrupt``
    ``"raise"`` (default) raises ``KeyboardInterrupt``, ``"return"`` returns the result so far with
    ``status = Status.INTERRUPTED``; either way the step in progress is finished first, unless
    ctrl-C is pressed twice;
``checkpoint``, ``every``
    a path to which the state is written every ``every`` steps and on ctrl-C. Calling the same
    estimator again with the same path continues from there and returns the numbers, bit for bit on
    the CPU, that an undisturbed run returns.

:func:`curvescope.spectra.resumable.run` does all this; no estimator has code for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypedDict

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator


class Status(str, Enum):
    """How an estimate ended; ``status.explanation`` says what it means and what to do."""

    DONE = "done"
    CONVERGED = "converged"
    BREAKDOWN = "breakdown"
    BUDGET = "budget"
    PRECISION = "precision"
    INTERRUPTED = "interrupted"

    @property
    def explanation(self) -> str:
        """The cause and the remedy, in one sentence."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    Status.DONE: "all requested steps or probes were taken",
    Status.CONVERGED: "every requested pair passed the residual test",
    Status.BREAKDOWN: "the start vector spans an invariant subspace: fewer steps were possible, "
    "and the Ritz values found are exact",
    Status.BUDGET: "the product budget ran out before every pair passed the residual test; raise "
    "max_products, basis or tol",
    Status.PRECISION: "the residuals reached the rounding of the operator's dtype before the "
    "tolerance; use a float64 operator or raise tol",
    Status.INTERRUPTED: "interrupted by ctrl-C; the result is what had been found until then",
}


class Control(TypedDict, total=False):
    """The keywords that every long estimate understands; see the module's docstring."""

    progress: Callable[[Progress], None] | None
    on_interrupt: str
    checkpoint: str | os.PathLike[str] | None
    every: int


@dataclass(frozen=True)
class Progress:
    """How far an estimate is: ``done`` of ``total`` steps, at a cost of ``products`` columns."""

    task: str
    done: int
    total: int
    products: int
    seconds: float

    @property
    def remaining(self) -> float:
        """Seconds left at the present pace (infinite before the first step)."""
        return self.seconds * (self.total - self.done) / self.done if self.done else float("inf")


def require_symmetric(where: str, A: object) -> None:
    """Refuse anything but a symmetric operator of positive dimension."""
    A = require_operator(where, A)
    if not A.symmetric:
        remedy = "declare it with symmetric=True"
        raise CurvescopeError(where, "needs a symmetric operator", given=A, remedy=remedy)
    if A.shape[0] == 0:
        raise CurvescopeError(where, "needs an operator of positive dimension", given=A)


def require_operator(where: str, A: object) -> LinearOperator:
    """Return ``A`` if it is an operator."""
    if not isinstance(A, LinearOperator):
        remedy = "wrap a matrix in Dense(matrix)"
        raise CurvescopeError(where, "needs an operator", given=type(A).__name__, remedy=remedy)
    return A


def require_finite(where: str, *numbers: Tensor) -> None:
    """Refuse NaN or infinite numbers, which an operator's products would spread."""
    if not all(bool(torch.isfinite(x).all()) for x in numbers):
        raise CurvescopeError(
            where,
            "the operator returned NaN or infinite numbers",
            remedy="check the model's weights and the data",
        )
