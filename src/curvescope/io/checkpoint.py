"""Checkpoints: the state of unfinished work in a file, from which only the same work resumes.

A checkpoint is a safetensors file with a checksum. Besides the state it holds everything on which
the numbers of the work depend, such as its settings. Work that differs in any of it is refused the
state, and the error says what differs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.io.differences import differences, in_words
from curvescope.io.files import PathLike, writes
from curvescope.io.tensors import read_tensors, write_tensors
from curvescope.io.text import parse_json

FORMAT = "curvescope checkpoint 2"


class Saved(NamedTuple):
    """The last state: tensors on the CPU, and plain JSON."""

    tensors: dict[str, Tensor]
    notes: Any


class Checkpoint:
    """The checkpoint of one piece of work.

    Args:
        path: The file; its folder must exist when something is written.
        *belongs: Everything on which the numbers depend, by name, in one or more parts: an error
            names only the first part in which two pieces of work differ. Values without a JSON
            form, such as tensors, are compared by their digests.
        where: The place that errors name.
        what: The kind of work, in words.
        words: Texts for differences; see :func:`differences`.
        remedy: The advice in the error about a state that is refused.

    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "state"
    >>> Checkpoint(path, {"seed": 0}, where="work").save({"x": torch.ones(2)}, notes=7)
    >>> Checkpoint(path, {"seed": 0}, where="work").load()
    Saved(tensors={'x': tensor([1., 1.])}, notes=7)
    >>> Checkpoint(path, {"seed": 1}, where="work").load()
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: work: the checkpoint ... belongs to another piece of work
    (seed is 0 there and 1 here); give another path or delete it
    """

    def __init__(
        self,
        path: PathLike,
        *belongs: Mapping[str, object],
        where: str,
        what: str = "piece of work",
        words: Mapping[str, str] | None = None,
        remedy: str = "give another path or delete it",
    ) -> None:
        self.path = Path(path)
        self._belongs = [_plain(part) for part in belongs]
        self._where, self._what = where, what
        self._words, self._remedy = words, remedy

    def load(self) -> Saved | None:
        """The state; None where there is none.

        Raises:
            CurvescopeError: If it belongs to other work, is damaged, or is no checkpoint.
        """
        if not os.path.lexists(self.path):
            return None
        try:
            tensors, texts = read_tensors(self.path, ours=True, links=False)
            if texts.get("format") != FORMAT:
                old = texts.get("format", "").startswith(FORMAT.rstrip("0123456789"))
                what = "was written by another version" if old else "is no checkpoint"
                rule = f"{str(self.path)!r} {what}"
                raise CurvescopeError(self._where, rule, remedy=self._remedy)
            belongs = parse_json(texts.get("belongs", ""), str(self.path))
            notes = parse_json(texts.get("notes", ""), str(self.path))
        except CurvescopeError as error:
            if error.where == self._where:
                raise
            rule = f"the checkpoint {error}"
            raise CurvescopeError(self._where, rule, remedy=self._remedy) from None
        for there, here in zip_longest(belongs, self._belongs):
            different = differences(there, here, self._words)
            if different:
                raise CurvescopeError(
                    self._where,
                    f"the checkpoint {str(self.path)!r} belongs to another {self._what} "
                    f"({in_words(different)})",
                    remedy=self._remedy,
                )
        # In memory of torch's own: where numbers begin decides how they are summed up.
        return Saved({name: tensor.clone() for name, tensor in tensors.items()}, notes)

    def save(self, tensors: Mapping[str, Tensor], notes: Any = None) -> None:
        """Write the state; a kill leaves the old state or the new one."""
        if not writes():
            return
        texts = {"format": FORMAT, "belongs": json.dumps(self._belongs), "notes": json.dumps(notes)}
        write_tensors(self.path, tensors, texts)

    def remove(self) -> None:
        """The work is finished: nothing goes on from here."""
        if writes():
            self.path.unlink(missing_ok=True)


def _plain(value: object) -> Any:
    """As JSON gives it back; what JSON does not know by its digest."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return f"#{digest(value)}"
