"""Torch's modes, which watch every function or operation of a thread while they are entered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from curvescope._state.switches import Shared
from curvescope._state.undo import PutBack, undone, uninterrupted

Watcher = TypeVar("Watcher", bound=TorchDispatchMode | TorchFunctionMode)

_NOTES = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""Torch's notes for its compiler, one for all threads, written as any of them enters a mode."""


def _notes() -> PutBack:
    before = {name: getattr(_python_dispatch, name, None) for name in _NOTES}

    def put_back() -> None:
        for name, value in before.items():
            if value is not None:
                setattr(_python_dispatch, name, value)

    return put_back


_dispatching = Shared(_notes)


@contextmanager
def watching(mode: Watcher) -> Iterator[Watcher]:
    """``with mode:``, but taken off the stack by its depth, whatever a ctrl-C interrupted.

    A recorder that stays on the stack watches everything that the thread computes from then on.
    """
    operations = isinstance(mode, TorchDispatchMode)
    depth: Callable[[], int] = (
        torch._C._len_torch_dispatch_stack if operations else torch._C._len_torch_function_stack
    )
    before = depth()

    def leave() -> None:
        while depth() > before:
            if operations:
                torch._C._pop_torch_dispatch_stack(None)
            else:
                torch._C._pop_torch_function_stack()

    with _dispatching() if operations else nullcontext(), undone(leave):
        mode.__enter__()  # type: ignore[no-untyped-call]
        yield mode


class Above:
    """Autograd as it was where this object was made, for use inside a mode of operations.

    A mode sees operations below autograd, where no derivative can be taken. ``with Above():`` puts
    torch's dispatcher for a while back to what it was before the mode was entered.
    """

    def __init__(self) -> None:
        self._include = torch._C._dispatch_tls_local_include_set()
        self._exclude = torch._C._dispatch_tls_local_exclude_set()
        self._guards: list[torch._C._ForceDispatchKeyGuard] = []

    def __enter__(self) -> None:
        guard = torch._C._ForceDispatchKeyGuard(self._include, self._exclude)
        guard.__enter__()
        self._guards.append(guard)

    def __exit__(self, *error: object) -> None:
        self._guards.pop().__exit__(None, None, None)


# Forward-mode differentiation ---------------------------------------------------------------------

_forward = threading.RLock()


@contextmanager
def forward_mode() -> Iterator[None]:
    """One thread at a time: torch counts the levels of forward mode for all of them together."""
    with uninterrupted(), _forward:
        yield
