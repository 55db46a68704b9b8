"""Kills at chosen file operations, in the process itself.

From the chosen operation on, nothing is written any more: neither by what was interrupted nor by
what would clean up after it. What lies in the folder then is what a process that was killed there
leaves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Killed(BaseException):
    """The process is dead."""


class _Killer:
    """An audit hook that counts the operations that change something below a folder."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.count, self.last = 0, sys.maxsize
        self.hooked = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or not self._changes(event, arguments):
            return
        self.count += 1
        if self.count > self.last:
            raise Killed

    def _changes(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return False
            return isinstance(path, str | bytes) and self._below(path)
        if event in ("os.rename", "os.mkdir", "os.rmdir", "os.remove"):
            return self._below(arguments[0])
        return False

    def _below(self, path: Any) -> bool:
        name = os.fspath(path)
        name = name.decode() if isinstance(name, bytes) else name
        # shutil.rmtree names entries relative to the folder that it has open.
        return not os.path.isabs(name) or name.startswith(str(self.folder))


_KILLER = _Killer()


@contextmanager
def killed_after(folder: Path, operations: int) -> Iterator[None]:
    """Let so many operations below the folder happen in the block, and no more."""
    if not _KILLER.hooked:
        sys.addaudithook(_KILLER)
        _KILLER.hooked = True
    _KILLER.folder, _KILLER.count, _KILLER.last = str(folder), 0, operations
    try:
        yield
    except Killed:
        pass
    finally:
        _KILLER.folder = None


def operations_of(folder: Path, work: Callable[[Path], Any]) -> int:
    """How many operations the work needs."""
    with killed_after(folder, sys.maxsize):
        work(folder)
    return _KILLER.count


def left_behind(folder: Path) -> list[Path]:
    """What only an unfinished process should leave."""
    parts = [*folder.rglob("*.part"), *folder.rglob(".part-*"), *folder.rglob("state.safetensors")]
    return [*parts, *folder.rglob("stages/*/work")]
