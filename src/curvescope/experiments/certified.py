"""A certificate at its place: shown if it is there, else made, by one process at a time.

A certificate is ``NAME.json`` with ``NAME.posterior.safetensors``; until it is finished, its parts
lie in ``NAME.parts``, whose ``config.json`` says what they are parts of.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from curvescope import io
from curvescope.certificates import Certificate, Progress, certify
from curvescope.certificates.certificate import posterior_file, refuse_others
from curvescope.certificates.prior import State
from curvescope.certificates.request import Request, describe
from curvescope.errors import CurvescopeError
from curvescope.experiments.lock import locked
from curvescope.experiments.store import claimed
from curvescope.training.folder import differences

_REMEDY = "name another file with --out, or replace it with --again"
_EMPTY = {"config.json", ".lock"}


def parts_folder(place: Path) -> Path:
    """Where an unfinished certificate goes on."""
    return place.with_suffix(".parts")


def certified(
    place: Path,
    model: nn.Module,
    initial_state: State,
    data: Any,
    *,
    seed: int,
    again: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> bool:
    """See to it that the certificate is at ``place``; say whether it was there before.

    Args:
        place: The JSON file; its folder must exist.
        model: The trained network.
        initial_state: The weights before training.
        data: The examples.
        seed: Decides every random number.
        again: Whether what is there is replaced.
        progress: Called after every epoch, and while drawing.
        **settings: As for :func:`curvescope.certificates.certification`.

    Raises:
        CurvescopeError: If something else is there, a certificate that is refuted, or another
            process works on it; nothing has been changed then.
    """

    def fresh() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def finished() -> bool:
        return not again and _finished(place, request, model, initial_state, data, progress)

    request = describe(model, initial_state, data, generator=fresh(), **settings)
    if finished():
        return True
    if not again:
        refuse_others(place, request)
    with _parts(parts_folder(place), request, again=again) as parts:
        if finished():  # another process was quicker
            return True
        certificate = certify(
            model, initial_state, data, generator=fresh(), checkpoint=parts, progress=progress,
            **settings,
        )  # fmt: skip
        certificate.save(place, overwrite=again)
        _clear(parts)
    return False


def _finished(
    place: Path,
    request: Request,
    model: nn.Module,
    initial_state: State,
    data: Any,
    progress: Callable[[Progress], None] | None,
) -> bool:
    """Whether this very certificate is there and stands up to being checked."""
    if not place.exists():
        return False
    certificate = Certificate.load(place)
    _compare(place, certificate.request, request, "a certificate")
    if not posterior_file(place).exists():
        return False
    result = certificate.verify(
        model=model, initial_state=initial_state, data=data, progress=progress
    )
    wrong = [f"{check.what}: {check.detail}" for check in result.checks if not check.passed]
    if wrong:
        rule = f"holds a certificate that is refuted ({wrong[0]})"
        raise CurvescopeError(repr(str(place)), rule, remedy=_REMEDY)
    return True


@contextmanager
def _parts(folder: Path, request: Request, *, again: bool) -> Iterator[Path]:
    """The folder for parts, for this process alone; gone at the end if it has none.

    Parts of another request are refused, or removed if that is wanted.
    """
    config = folder / "config.json"
    if config.exists() and io.header(io.read_json(config)) == Request.__name__:
        there = io.load(config, Request, remedy=_REMEDY)
        if not again:
            _compare(folder, there, request, "an unfinished certificate")
        elif there != request:
            with locked(folder):
                _clear(folder)
    with claimed(folder, request):
        try:
            yield folder
        finally:  # while nobody else may work here
            if {entry.name for entry in folder.iterdir()} <= _EMPTY:
                shutil.rmtree(folder, ignore_errors=True)


def _compare(where: Path, there: Request, here: Request, what: str) -> None:
    different = differences(io.encode(there)[0], io.encode(here)[0])
    if different:
        more = f"; and {len(different) - 6} more" if len(different) > 6 else ""
        rule = f"holds {what} of another configuration ({'; '.join(different[:6])}{more})"
        raise CurvescopeError(repr(str(where)), rule, remedy=_REMEDY)


def _clear(folder: Path) -> None:
    """Remove the parts; the lock stays with whoever holds it."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != ".lock":
            entry.unlink()
