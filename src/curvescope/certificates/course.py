"""Where an unfinished optimization is kept, to go on after a kill as if there had been none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from curvescope import io
from curvescope.errors import CurvescopeError

EVERY = 3.0  # seconds between two writes

State = tuple[dict[str, Tensor], Any]
"""Tensors, and notes that JSON can hold."""


def read_part(file: Path, key: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What was kept of this certification in one file; a changed file is refused.

    Raises:
        CurvescopeError: If it was kept for another certification, or has changed since.
    """
    tensors, metadata = io.read_tensors(file, ours=True)
    if metadata.get("request") != key:
        raise CurvescopeError(
            repr(str(file.parent)),
            "belongs to another certification, with another network, initial state, data, method, "
            "confidence or seed",
            remedy="remove it, or name another folder",
        )
    return tensors, metadata


class Course:
    """A file with the state after some epoch; none at all without a folder.

    Args:
        folder: Where the file lies.
        key: The digest of the request; a file with another one is refused.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._file = None if folder is None else folder / "course.safetensors"
        self._key, self._written = key, time.monotonic()

    def load(self) -> State | None:
        """What was kept last."""
        if self._file is None or not self._file.exists():
            return None
        tensors, metadata = read_part(self._file, self._key)
        return tensors, io.parse_json(metadata["notes"], str(self._file))

    def keep(self, state: Callable[[], State]) -> None:
        """Write the state, unless that was done a moment ago."""
        if self._file is None or time.monotonic() - self._written < EVERY:
            return
        tensors, notes = state()
        metadata = {"request": self._key, "notes": json.dumps(notes)}
        io.write_tensors(
            self._file, {k: t.cpu().contiguous() for k, t in tensors.items()}, metadata
        )
        self._written = time.monotonic()

    def end(self) -> None:
        """The optimization is finished, and what was kept of it of no use any more."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
