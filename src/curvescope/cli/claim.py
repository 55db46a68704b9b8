"""The place of a certificate: free, with one of the same configuration, or refused.

A certificate is ``NAME.json`` with ``NAME.safetensors``; until it is finished, its parts lie in
``NAME.parts``, whose ``config.json`` says what they are parts of.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from curvescope import identity, io
from curvescope._checks import CurvescopeError
from curvescope.certificates import Method
from curvescope.certificates.certificate import configuration_of, posterior_file
from curvescope.certificates.examples import as_examples, digest, home
from curvescope.cli.inputs import Subject
from curvescope.cli.options import writable
from curvescope.experiments.lock import locked
from curvescope.training.folder import differences

_CONFIG = "config.json"
_NOTHING_YET = {_CONFIG, ".lock"}


def check_place(place: Path) -> None:
    """Refuse a place that no certificate can be written to, before any work is done for it.

    Raises:
        CurvescopeError: If it is a folder, or its folder is not there or cannot be written.
    """
    if place.is_dir() or place.suffix in (".safetensors", ".parts"):
        msg = f"--out {str(place)!r}: must be a file for the certificate, such as certificate.json"
        raise CurvescopeError(msg)
    if not place.parent.is_dir():
        msg = f"--out {str(place)!r}: {str(place.parent)!r} is not a folder that exists; make it"
        raise CurvescopeError(msg)
    if not place.exists() and not writable(place.parent):
        msg = f"{str(place)!r}: cannot be written (Permission denied); name another file with --out"
        raise CurvescopeError(msg)


@dataclass(frozen=True)
class Claim:
    """A place and what is to be there."""

    place: Path
    configuration: Mapping[str, Any]

    @property
    def parts(self) -> Path:
        """Where an unfinished certification goes on."""
        return self.place.with_suffix(".parts")

    def finished(self, *, again: bool) -> bool:
        """Whether this very certificate is there.

        Args:
            again: Another one, and the parts of another one, may be replaced.

        Raises:
            CurvescopeError: If there is another one; the message shows the difference.
        """
        if again:
            return False
        if self.place.exists():
            self._compare(self.place, configuration_of(self.place), "a certificate")
            return posterior_file(self.place).exists()
        if self.parts.is_dir() and any(entry.name != ".lock" for entry in self.parts.iterdir()):
            file = self.parts / _CONFIG
            there = io.read_json(file) if file.exists() else None
            self._compare(self.parts, there, "an unfinished certificate")
        return False

    def _compare(self, where: Path, there: Any, what: str) -> None:
        remedy = "name another file with --out, or replace it with --again"
        if not isinstance(there, dict):
            msg = f"{str(where)!r}: holds {what} that does not say how it was made; {remedy}"
            raise CurvescopeError(msg)
        different = differences(there, self._plain)
        if different:
            more = f"; and {len(different) - 6} more" if len(different) > 6 else ""
            msg = (
                f"{str(where)!r}: holds {what} of another configuration "
                f"({'; '.join(different[:6])}{more}); {remedy}"
            )
            raise CurvescopeError(msg)

    @property
    def _plain(self) -> dict[str, Any]:
        """The configuration as it looks when it is read back."""
        return json.loads(json.dumps(dict(self.configuration)))

    @contextmanager
    def work(self) -> Iterator[Path]:
        """The folder for parts, for this process alone; gone at the end if it has none.

        Parts of the same configuration are kept and used, those of another one removed.
        """
        try:
            self.parts.mkdir(exist_ok=True)
        except OSError as error:
            msg = f"{str(self.parts)!r}: cannot be made ({error.strerror}); choose another --out"
            raise CurvescopeError(msg) from None
        with locked(self.parts):
            try:
                file = self.parts / _CONFIG
                if not file.exists() or io.read_json(file) != self._plain:
                    _clear(self.parts)
                    io.write_json(file, self._plain)
                yield self.parts
            finally:
                if {entry.name for entry in self.parts.glob("*")} <= _NOTHING_YET:
                    self.remove_parts()

    def remove_parts(self) -> None:
        """For when the certificate is there, or nothing of it."""
        shutil.rmtree(self.parts, ignore_errors=True)


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != ".lock":
            entry.unlink()


def described(subject: Subject, initial: Path, method: Method) -> dict[str, Any]:
    """Network, weights, data and method, as far as they decide a certificate."""
    device, dtype = home("certify", subject.model)
    examples = as_examples("certify", subject.data.train, device, dtype)
    test = subject.data.test
    return {
        "weights": weights_digest(subject.model.state_dict()),
        "initial": weights_digest(io.read_tensors(initial)[0]),
        "data": {"samples": len(examples[1]), "sha256": digest(examples)},
        "test": None if test is None else digest(as_examples("certify", test, device, dtype)),
        "method": asdict(method),
    }


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Names, shapes and numbers of a state dict.

    >>> weights_digest({"w": torch.zeros(2)}) == weights_digest({"w": torch.zeros(2, 1)})
    False
    """
    return identity.digest(dict(state))
