"""Progress, ctrl-C and checkpoints for every estimate, without code in the estimate itself.

An :class:`Estimator` is an estimate cut into steps: a constructor that takes the operator and the
settings, a method that takes one step, named tensors that hold all intermediate numbers, and a
method that makes the result of them. :func:`run` takes the steps. Around them it

- prepares the operator for many products (:meth:`LinearOperator.for_many`);
- counts the products, by a wrapper around the operator;
- reports progress after every step, and lets ctrl-C through between two of them;
- writes the tensors and the state of every generator to a checkpoint, and resumes from one of the
  same estimator with the same settings, matrix and plan, and generators that began in the same
  state, on the same number of ranks or another;
- keeps the ranks together where the vectors of the operator are spread: all take the same steps,
  and end at the same one.

``docs/extending/estimator.md`` shows one in a file of its own.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from torch import Tensor

from curvescope import _checks, io
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import Control, Progress, Status, require_operator
from curvescope.spectra.course import Counted, Course, check_alike

P = ParamSpec("P")
R = TypeVar("R")
State = Mapping[str, Tensor]
"""The intermediate numbers of an estimate: named tensors."""
_WORDS = {
    "task": "it is one of {there}",
    "matrix": "the matrix is another one",
    "code": "the code of the estimator is another one",
    "plan": "products are {there} there and {here} here, where another amount of memory is free: "
    "keep=True or keep=False asks for one of them",
    "generator": "the generator began in another state, that of another seed",
    "start": "it started from another vector, or from a generator in another state",
}


@dataclass(frozen=True)
class End:
    """How the steps ended: the columns multiplied, and whether all steps were taken."""

    products: int
    complete: bool

    @property
    def status(self) -> Status:
        """``DONE`` or ``INTERRUPTED``."""
        return Status.DONE if self.complete else Status.INTERRUPTED


class Estimator(ABC, Generic[R]):
    """An estimate in steps; a subclass is constructed from an operator and settings.

    The result must be a function of the matrix and the settings: random numbers come from
    generators among them. Products are taken only in :meth:`step`.

    ``state`` holds everything that changes from step to step; assigning a saved state to it resumes
    there. It may be a dictionary into which a step puts new tensors at its end, or a property.
    """

    task: ClassVar[str]
    """The name in progress, errors and checkpoints."""
    forms: ClassVar[bool] = False
    """Whether it uses quadratic forms instead of products."""
    free: ClassVar[tuple[str, ...]] = ()
    """Settings that may change on resuming, such as the number of steps."""
    vectors: ClassVar[tuple[str, ...]] = ()
    """Names in ``state``, or in that of a part, whose rows are vectors ``[…, A.domain.count]``."""

    state: State

    @property
    @abstractmethod
    def done(self) -> int:
        """The work done, in a unit that the estimator chooses."""

    @property
    @abstractmethod
    def total(self) -> int:
        """The total work, in the same unit."""

    @property
    def finished(self) -> bool:
        """Whether no step is left."""
        return self.done >= self.total

    @property
    def has_result(self) -> bool:
        """Whether :meth:`result` works if the steps end now."""
        return True

    @abstractmethod
    def step(self) -> None:
        """Take one step."""

    @abstractmethod
    def result(self, end: End) -> R:
        """The result of the steps so far; ``end`` says how they ended."""


def run(
    estimator: Callable[Concatenate[LinearOperator, P], Estimator[R]],
    A: LinearOperator,
    control: Control,
    /,
    *args: P.args,
    **settings: P.kwargs,
) -> R:
    """Take the steps of ``estimator(A, …settings)``, under control.

    Args:
        estimator: A subclass of :class:`Estimator`.
        A: The operator.
        control: ``progress``, ``on_interrupt``, ``checkpoint``, ``every``: see
            :mod:`curvescope.spectra.control`.
        *args: Settings of the estimator.
        **settings: More of them.

    Raises:
        CurvescopeError: If a keyword is unknown, or the checkpoint belongs to another estimate.
    """
    kind: Any = estimator
    task = kind.task
    tell, returns, path, every = _options(task, control)
    A = require_operator(task, A).for_many(forms=kind.forms)
    counted = Counted(A)
    bound: dict[str, object] = {}
    place: io.Checkpoint | None = None
    if path is not None:
        arguments = inspect.signature(estimator).bind(counted, *args, **settings)
        arguments.apply_defaults()
        bound = dict(list(arguments.arguments.items())[1:])
        place = _checkpoint(path, kind, counted, bound, A.keeping)
    check_alike(task, A.domain, [*args, *settings.values()])
    steps = estimator(counted, *args, **settings)
    with _held() as pressed, A.domain.group.together():
        course = Course(steps, counted, bound, place)
        began, taken, stopped = time.perf_counter(), 0, False
        try:
            while not (stopped := course.stopped(pressed.once)) and not steps.finished:
                course.step()
                taken += 1
                if taken % every == 0:
                    course.save()
                if tell is not None:
                    seconds = time.perf_counter() - began
                    tell(Progress(task, steps.done, steps.total, counted.products, seconds))
            if stopped:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            if pressed.twice or not (stopped or A.domain.alone):
                raise
            course.save()
            if not returns or not steps.has_result:
                raise
    return steps.result(End(course.products, steps.finished))


def _options(
    task: str, control: Control
) -> tuple[Callable[[Progress], None] | None, bool, str | None, int]:
    """The control keywords, checked: progress, whether ctrl-C returns, checkpoint, every."""
    unknown = sorted(set(control) - set(Control.__annotations__))
    if unknown:
        remedy = f"besides its own settings it takes {', '.join(Control.__annotations__)}"
        raise CurvescopeError(task, f"unknown keyword {unknown[0]!r}", remedy=remedy)
    after = _checks.one_of(
        task, "on_interrupt", control.get("on_interrupt", "raise"), ("raise", "return")
    )
    path = control.get("checkpoint")
    every = _checks.positive_int(task, "every", control.get("every", 10))
    return (
        control.get("progress"), after == "return", None if path is None else os.fspath(path), every
    )  # fmt: skip


def _checkpoint(
    path: str, kind: Any, A: Counted, settings: Mapping[str, object], plan: str
) -> io.Checkpoint:
    """The checkpoint at ``path``, with everything that the numbers depend on."""
    decides = {name: value for name, value in settings.items() if name not in kind.free}
    matrix = {"shape": A.shape, "dtype": str(A.dtype), "device": A.device.type}
    return io.Checkpoint(
        path,
        {"task": kind.task},
        {"estimator": kind.__name__, **decides, **matrix, "matrix": A.identity},
        {"code": kind if isinstance(kind, type) else None, "plan": plan},
        where=kind.task, what="estimate", words=_WORDS,
    )  # fmt: skip


def state_of(part: str) -> Any:
    """The state of an estimator whose numbers are all in one part with ``state()`` and ``load``.

    ``state = state_of("krylov")`` in the class saves and restores the attribute ``krylov``.
    """

    def read(estimator: Any) -> State:
        return getattr(estimator, part).state()

    def write(estimator: Any, state: State) -> None:
        getattr(estimator, part).load(state)

    return property(read, write)


# Seconds in which a second signal is the first one: torchrun passes on what the terminal has sent.
_SAME = 1.0 if "TORCHELASTIC_RUN_ID" in os.environ else 0.0


class _Pressed:
    """A signal handler that counts ctrl-C and raises at the second."""

    once = twice = False
    _first = 0.0

    def __call__(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if not self.once:
            self.once, self._first = True, now
        elif now - self._first > _SAME:
            self.twice = True
            raise KeyboardInterrupt


@contextmanager
def _held() -> Iterator[_Pressed]:
    """Delay ctrl-C to the end of the block, in the main thread with Python's default handler."""
    pressed = _Pressed()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield pressed
        return
    signal.signal(signal.SIGINT, pressed)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
