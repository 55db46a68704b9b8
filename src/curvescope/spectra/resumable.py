"""Progress, ctrl-C and checkpoints for every estimate, without code in the estimate itself.

An :class:`Estimator` is an estimate cut into steps: a constructor that takes the operator and the
settings, a method that takes one step, named tensors that hold all intermediate numbers, and a
method that makes the result of them. :func:`run` takes the steps. Around them it

- prepares the operator for many products (:meth:`LinearOperator.for_many`);
- counts the products, by a wrapper around the operator;
- reports progress after every step, and lets ctrl-C through between two of them;
- writes the tensors and the state of every generator to a checkpoint, and resumes from one of the
  same estimator with the same settings, matrix and plan, and generators that began in the same
  state.

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
    """The checkpoint at ``path``, with everything that the numbers depend on."""
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
    """The steps of an estimate, and its checkpoint."""

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
        if A.products > A.products_for_identity:
            rule = "takes products in its constructor, which are lost when its steps go on"
            raise CurvescopeError(steps.task, rule, remedy="take them in a step")
        saved = None if place is None else place.load()
        if saved is not None:
            self._go_back(saved)
        self._before = dict(vars(steps)) if "state" in vars(steps) else None
        self._note()

    def _go_back(self, saved: io.Saved) -> None:
        done, products = saved.notes
        steps, current = self._steps, self._steps.state
        if done > steps.total:
            rule = f"the checkpoint has {done} steps, more than the {steps.total} asked for"
            raise CurvescopeError(steps.task, rule, remedy="ask for as many, or delete it")
        state = below("state", saved.tensors)
        steps.state = {
            name: tensor.to(current[name].device) if name in current else tensor
            for name, tensor in state.items()
        }
        for name, generator in self._generators.items():
            generator.set_state(saved.tensors[f"generator.{name}"])
        self._operator.products = products

    def step(self) -> None:
        """Take one step and record generators and products for the next :meth:`save`."""
        self._steps.step()
        self._note()
        if self._before is not None:
            _refuse_hidden(self._steps, self._before)
            self._before = None

    def _note(self) -> None:
        """Record generators and products after a whole step; an interrupted one changes them."""
        self.products = self._operator.products
        if self._place is not None:
            self._drawn = {
                f"generator.{name}": generator.get_state()
                for name, generator in self._generators.items()
            }

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self._place is not None:
            tensors = {**nested("state", self._steps.state), **self._drawn}
            self._place.save(tensors, [self._steps.done, self.products])


def _refuse_hidden(steps: Estimator[Any], before: Mapping[str, object]) -> None:
    """Refuse attributes that a step sets outside ``state``: they would be lost on resuming."""
    for name, value in vars(steps).items():
        if name != "state" and value is not before.get(name):
            rule = f"a step sets {name!r}, which is no part of its `state`"
            raise CurvescopeError(steps.task, rule, remedy="keep it there")


def state_of(part: str) -> Any:
    """The state of an estimator whose numbers are all in one part with ``state()`` and ``load``.

    ``state = state_of("krylov")`` in the class saves and restores the attribute ``krylov``.
    """

    def read(estimator: Any) -> State:
        return getattr(estimator, part).state()

    def write(estimator: Any, state: State) -> None:
        getattr(estimator, part).load(state)

    return property(read, write)


def nested(name: str, state: State) -> dict[str, Tensor]:
    """The state of a part with ``name.`` before its keys, for the state of the whole.

    >>> list(nested("outer", nested("inner", {"x": torch.ones(1)})))
    ['outer.inner.x']
    """
    return {f"{name}.{key}": tensor for key, tensor in state.items()}


def below(name: str, state: State) -> dict[str, Tensor]:
    """The inverse of :func:`nested`: the state of a part from that of the whole."""
    start = f"{name}."
    return {key[len(start) :]: t for key, t in state.items() if key.startswith(start)}


class Counted(LinearOperator):
    """The same matrix, with a count of the ``products`` taken: columns or quadratic forms.

    ``products_for_identity`` of them were used to compute its identity.
    """

    def __init__(self, A: LinearOperator) -> None:
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=A.symmetric, psd=A.psd)
        self._operator = A
        self.products = self.products_for_identity = 0

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
        """The identity of the matrix; products taken for it are counted."""
        self.products_for_identity += self._operator.identity_products
        self.products += self._operator.identity_products
        return self._operator.identity

    def __repr__(self) -> str:
        return repr(self._operator)


class _Pressed:
    """A signal handler that counts ctrl-C and raises at the second."""

    once = twice = False

    def __call__(self, number: int, frame: object) -> None:
        self.once, self.twice = True, self.once
        if self.twice:
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
