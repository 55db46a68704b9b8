"""Long estimates under control: progress, interruption, saved state.

Every estimator takes the same four optional keywords, :class:`Control`:

``progress``
    a callable that receives a :class:`Progress` after every step;
``on_interrupt``
    ``"raise"`` (default) lets ctrl-C through, ``"return"`` ends the estimate with what is there and
    ``status = Status.INTERRUPTED``; either way the step in progress is finished first, unless
    ctrl-C is pressed twice;
``checkpoint``, ``every``
    a path to which the state is written every ``every`` steps and on ctrl-C. Calling the same
    estimator again with the same path continues from there and returns the numbers, bit for bit on
    the CPU, that an undisturbed run returns.

A state belongs to one estimate and is refused by any other one: see
:mod:`curvescope.spectra.checkpoint`. Where the matrix can only be recognized by a product with it,
that product is counted with the others.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TypedDict

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._checks import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.checkpoint import Checkpoint, State


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


class Watch:
    """A context manager around the loop of an estimator.

    Ctrl-C is held back until the next :meth:`tick`, where the state (which ``state`` returns) is
    that of a whole number of steps. Only Python's own handler in the main thread is replaced.

    The operator is asked for its plan before the first product, so that products do not depend on
    what was done with it before; ``forms`` says that only quadratic forms are taken.

    ``settings`` are what decides the numbers besides the matrix: with them a saved state is
    recognized. ``products`` counts those that recognizing the matrix took.
    """

    def __init__(
        self,
        task: str,
        A: LinearOperator,
        settings: Mapping[str, object],
        state: Callable[[], State],
        *,
        forms: bool = False,
        **control: object,
    ) -> None:
        unknown = set(control) - set(Control.__annotations__)
        if unknown:
            msg = (
                f"{task}: unknown keyword {sorted(unknown)[0]!r}; besides its own settings it "
                f"takes {', '.join(Control.__annotations__)}"
            )
            raise CurvescopeError(msg)
        on_interrupt = str(control.get("on_interrupt", "raise"))
        _checks.one_of(task, "on_interrupt", on_interrupt, ("raise", "return"))
        every, path = control.get("every", 10), control.get("checkpoint")
        self.interrupted = False
        self._task, self._state = task, state
        self._returns = on_interrupt == "return"
        settings = {**settings, "plan": A.plan(forms=forms)}
        self._checkpoint = None if path is None else Checkpoint(os.fspath(path), task, A, settings)  # type: ignore[call-overload]
        self.products = 0 if self._checkpoint is None else self._checkpoint.products
        self._every = _checks.positive_int(task, "every", every)  # type: ignore[arg-type]
        self._progress: Callable[[Progress], None] | None = control.get("progress")  # type: ignore[assignment]
        self._began, self._ticks = time.perf_counter(), 0
        self._pressed = self._forced = self._holds = False

    def restore(self) -> dict[str, Tensor] | None:
        """The saved state, or None where there is none; another estimate's state is refused."""
        return None if self._checkpoint is None else self._checkpoint.load()

    def tick(self, done: int, total: int, products: int) -> None:
        """Report one step, and save the state when it is time."""
        self._ticks += 1
        if self._ticks % self._every == 0:
            self.save()
        if self._progress is not None:
            seconds = time.perf_counter() - self._began
            self._progress(Progress(self._task, done, total, products, seconds))
        if self._pressed:
            raise KeyboardInterrupt

    def save(self) -> None:
        """Write the state."""
        if self._checkpoint is not None:
            self._checkpoint.save(self._state())

    def _hold(self, number: int, frame: object) -> None:
        if self._pressed:
            self._forced = True
            raise KeyboardInterrupt
        self._pressed = True

    def __enter__(self) -> Watch:
        in_main = threading.current_thread() is threading.main_thread()
        self._holds = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._holds:
            signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None and self._pressed and not self._returns:
            raise KeyboardInterrupt  # pressed during the last step
        if kind is None or not issubclass(kind, KeyboardInterrupt) or self._forced:
            return False
        self.save()
        self.interrupted = True
        return self._returns


def require_symmetric(where: str, A: object) -> None:
    """Refuse anything but a symmetric operator of positive dimension."""
    if not isinstance(A, LinearOperator):
        msg = f"{where}: needs an operator, got {type(A).__name__}; wrap a matrix in Dense(matrix)"
        raise CurvescopeError(msg)
    if not A.symmetric:
        msg = f"{where}: needs a symmetric operator, got {A}; declare it with symmetric=True"
        raise CurvescopeError(msg)
    if A.shape[0] == 0:
        msg = f"{where}: needs an operator of positive dimension, got {A}"
        raise CurvescopeError(msg)


def require_finite(where: str, *numbers: Tensor) -> None:
    """Refuse an operator whose products are not finite: everything after would be NaN."""
    if not all(bool(torch.isfinite(x).all()) for x in numbers):
        msg = (
            f"{where}: the operator returned NaN or infinite numbers; check the model's weights "
            "and the data"
        )
        raise CurvescopeError(msg)
