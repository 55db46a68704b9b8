"""One thread at a time on a model: locks that models with a common part share.

An evaluation sets the flags of a model and puts other tensors into it, so that a second thread
would compute with the first one's. Every module therefore has a guard, which it shares with all
modules of the first model that it was evaluated in. A model takes the guards of all its modules,
oldest first: two models with a part in common exclude each other, all others run side by side.

A guard is held during an evaluation and never while data is read or a caller's code runs, so that
it cannot come between the caller's locks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

from torch import nn

from curvescope._state.undo import undone
from curvescope.errors import CurvescopeError

_counter = itertools.count()


class _Guard:
    """A lock that its own thread may take again, and the thread that trains what it guards."""

    def __init__(self) -> None:
        self.number = next(_counter)
        self.lock = threading.RLock()
        self.trainer: int | None = None


_registry = threading.Lock()
_guards: WeakKeyDictionary[nn.Module, _Guard] = WeakKeyDictionary()
_cache: WeakKeyDictionary[nn.Module, tuple[int, tuple[_Guard, ...]]] = WeakKeyDictionary()


def _guards_of(model: nn.Module, modules: list[nn.Module] | None = None) -> tuple[_Guard, ...]:
    """The guards of a model's modules, oldest first; looked up anew when it has other modules."""
    cached = _cache.get(model)
    if cached is not None and (modules is None or cached[0] == len(modules)):
        return cached[1]
    modules = list(model.modules()) if modules is None else modules
    with _registry:
        new = _Guard()
        distinct = {_guards.setdefault(module, new) for module in modules}
        guards = tuple(sorted(distinct, key=lambda guard: guard.number))
        _cache[model] = len(modules), guards
    return guards


@contextmanager
def exclusive(model: nn.Module, modules: list[nn.Module] | None = None) -> Iterator[None]:
    """This thread alone on a model, and on every model that shares a module with it.

    Args:
        model: Any module.
        modules: All its modules, where the caller has listed them already.

    Raises:
        CurvescopeError: If another thread is training the model.
    """
    guards = _guards_of(model, modules)
    if len(guards) == 1:  # nearly always, and worth being quick about
        with guards[0].lock:
            _refuse_other_trainer(guards)
            yield
        return
    with ExitStack() as stack:
        for guard in guards:
            stack.enter_context(guard.lock)
        _refuse_other_trainer(guards)
        yield


@contextmanager
def claimed(model: nn.Module) -> Iterator[None]:
    """This thread changes the model for a while, and other threads are refused.

    No lock is held meanwhile, so that a caller may wait for another thread between two steps.
    """
    guards = _guards_of(model)
    with exclusive(model):
        before = [guard.trainer for guard in guards]

    def put_back() -> None:
        for guard, trainer in zip(guards, before, strict=True):
            guard.trainer = trainer

    with undone(put_back):
        for guard in guards:
            guard.trainer = threading.get_ident()
        yield


def _refuse_other_trainer(guards: tuple[_Guard, ...]) -> None:
    this_thread = threading.get_ident()
    if any(guard.trainer not in (None, this_thread) for guard in guards):
        rule = "is being trained in another thread, so that its weights change from step to step"
        remedy = "wait for the training, or give a copy.deepcopy of the model"
        raise CurvescopeError("model", rule, remedy=remedy)
