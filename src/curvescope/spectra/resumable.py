"""Progress, ctrl-C and saved states around an estimate that knows nothing of them.

An :class:`Estimator` is an estimate cut into steps: a constructor that takes the operator and the
settings, a method that takes one step, named tensors that hold what the steps have come to, and the
result that they make. :func:`run` takes the steps. Around them it

- takes the operator for many products, which keeps what they need before the first one;
- counts the products, by handing the estimator an operator that does;
- reports progress after every step, and lets ctrl-C through between two of them;
- writes the tensors and the state of every generator to a checkpoint, and goes on from one, if it
  is that of the same estimator with the same settings, on the same matrix, with generators that
  began in the same state, and with the same plan.

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

import torch
from torch import Tensor

from curvescope import _checks, io
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra.control import Control, Progress, Status, require_operator

P = ParamSpec("P")
R = TypeVar("R")
State = Mapping[str, Tensor]
"""What the steps have come to: named tensors."""
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

    The settings are what the numbers follow from, besides the matrix: random numbers come from
    generators among them. Products are taken in steps alone.

    ``state`` is all that changes from step to step, and goes back to what it is assigned. A
    dictionary will do, in which a step puts new tensors at its end; an estimator that keeps its
    numbers otherwise makes a property of it.
    """

    task: ClassVar[str]
    """What progress, errors and checkpoints call it."""
    forms: ClassVar[bool] = False
    """Whether quadratic forms are taken rather than products."""
    free: ClassVar[tuple[str, ...]] = ()
    """Settings that may be others when the steps go on: how many steps there are, say."""

    state: State

    @property
    @abstractmethod
    def done(self) -> int:
        """How far it is, in a unit of its own."""

    @property
    @abstractmethod
    def total(self) -> int:
        """How far it goes."""

    @property
    def finished(self) -> bool:
        """Whether there is no step left."""
        return self.done >= self.total

    @property
    def has_result(self) -> bool:
        """Whether a result can be made of what is there, where the steps were ended early."""
        return True

    @abstractmethod
    def step(self) -> None:
        """Take one step."""

    @abstractmethod
    def result(self, end: End) -> R:
        """What the steps have come to."""


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
        **settings: Likewise.

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
    steps = estimator(counted, *args, **settings)
    with _held() as pressed:
        course = _Course(steps, counted, bound, place)
        began, taken = time.perf_counter(), 0
        try:
            while not steps.finished and not pressed.once:
                course.step()
                taken += 1
                if taken % every == 0:
                    course.save()
                if tell is not None:
                    seconds = time.perf_counter() - began
                    tell(Progress(task, steps.done, steps.total, counted.products, seconds))
            if pressed.once:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            if pressed.twice:
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
    """The place of the state, with all that decides the numbers; generators as they are now."""
    decides = {name: value for name, value in settings.items() if name not in kind.free}
    matrix = {"shape": A.shape, "dtype": str(A.dtype), "device": str(A.device)}
    return io.Checkpoint(
        path,
        {"task": kind.task},
        {"estimator": kind.__name__, **decides, **matrix, "matrix": A.identity},
        {"code": kind if isinstance(kind, type) else None, "plan": plan},
        where=kind.task, what="estimate", words=_WORDS,
    )  # fmt: skip


class _Course:
    """The steps of an estimate, with what was last written of them or will be."""

    def __init__(
        self,
        steps: Estimator[Any],
        A: Counted,
        settings: Mapping[str, object],
        place: io.Checkpoint | None,
    ) -> None:
        self._steps, self._operator, self._place = steps, A, place
        self._generators = {
            name: value for name, value in settings.items() if isinstance(value, torch.Generator)
        }
        if A.products > A.known:
            rule = "takes products in its constructor, which are lost when its steps go on"
            raise CurvescopeError(steps.task, rule, remedy="take them in a step")
        saved = None if place is None else place.load()
        if saved is not None:
            self._go_back(saved)
        self._before = dict(vars(steps)) if "state" in vars(steps) else None
        self._note()

    def _go_back(self, saved: io.Saved) -> None:
        done, products = saved.notes
        steps, own = self._steps, self._steps.state
        if done > steps.total:
            rule = f"the checkpoint has {done} steps, more than the {steps.total} asked for"
            raise CurvescopeError(steps.task, rule, remedy="ask for as many, or delete it")
        state = below("state", saved.tensors)
        steps.state = {
            name: tensor.to(own[name].device) if name in own else tensor
            for name, tensor in state.items()
        }
        for name, generator in self._generators.items():
            generator.set_state(saved.tensors[f"generator.{name}"])
        self._operator.products = products

    def step(self) -> None:
        """One step; what it leaves is what is written from now on."""
        self._steps.step()
        self._note()
        if self._before is not None:
            _refuse_hidden(self._steps, self._before)
            self._before = None

    def _note(self) -> None:
        """Generators and products after a whole step, as an interrupted one goes beyond them."""
        self.products = self._operator.products
        if self._place is not None:
            self._drawn = {
                f"generator.{name}": generator.get_state()
                for name, generator in self._generators.items()
            }

    def save(self) -> None:
        """Write the state, if there is a place for it."""
        if self._place is not None:
            tensors = {**nested("state", self._steps.state), **self._drawn}
            self._place.save(tensors, [self._steps.done, self.products])


def _refuse_hidden(steps: Estimator[Any], before: Mapping[str, object]) -> None:
    """Refuse what a step keeps elsewhere: it would be lost when the steps go on."""
    for name, value in vars(steps).items():
        if name != "state" and value is not before.get(name):
            rule = f"a step sets {name!r}, which is no part of its `state`"
            raise CurvescopeError(steps.task, rule, remedy="keep it there")


def nested(name: str, state: State) -> dict[str, Tensor]:
    """The state of a part, as a part of a state.

    >>> list(nested("outer", nested("inner", {"x": torch.ones(1)})))
    ['outer.inner.x']
    """
    return {f"{name}.{key}": tensor for key, tensor in state.items()}


def below(name: str, state: State) -> dict[str, Tensor]:
    """The state of a part out of that of the whole."""
    start = f"{name}."
    return {key[len(start) :]: t for key, t in state.items() if key.startswith(start)}


class Counted(LinearOperator):
    """The same matrix, which counts the columns that it multiplies, or takes forms with.

    ``known`` of them recognized the matrix.
    """

    def __init__(self, A: LinearOperator) -> None:
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=A.symmetric, psd=A.psd)
        self._operator = A
        self.products = self.known = 0

    def _matmat(self, X: Tensor) -> Tensor:
        Y = self._operator._matmat(X)
        self.products += X.shape[1]
        return Y

    def _rmatmat(self, Y: Tensor) -> Tensor:
        X = self._operator._rmatmat(Y)
        self.products += Y.shape[1]
        return X

    def _quadratic(self, X: Tensor) -> Tensor:
        forms = self._operator._quadratic(X)
        self.products += X.shape[1]
        return forms

    @property
    def identity(self) -> str:
        """That of the matrix; the products that it takes count."""
        self.known += self._operator.identity_products
        self.products += self._operator.identity_products
        return self._operator.identity

    def __repr__(self) -> str:
        return repr(self._operator)


class _Pressed:
    """Ctrl-C, counted; the second one raises at once."""

    once = twice = False

    def __call__(self, number: int, frame: object) -> None:
        self.once, self.twice = True, self.once
        if self.twice:
            raise KeyboardInterrupt


@contextmanager
def _held() -> Iterator[_Pressed]:
    """Hold ctrl-C back in the block, in the main thread and where Python's own handler has it."""
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
