"""A certificate in a file: verified if it exists, else computed, by one process at a time.

A certificate is ``NAME.json`` with ``NAME.posterior.safetensors``; until it is finished, its parts
lie in ``NAME.parts``, whose ``config.json`` holds the request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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

_REMEDY = "name another file with --out, or replace it with --again"


def parts_folder(place: Path) -> Path:
    """The folder with the checkpoints of an unfinished certificate."""
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
    """Compute the certificate into ``place`` unless it is there; return whether it was.

    Args:
        place: The JSON file; its folder must exist.
        model: The trained network.
        initial_state: The weights before training.
        data: The examples.
        seed: Decides every random number.
        again: Whether an existing certificate is replaced.
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
    parts = parts_folder(place)
    with io.claimed(
        parts, request, what="an unfinished certificate", remedy=_REMEDY, remedy_cli=None,
        replace=again,
    ):  # fmt: skip
        if finished():  # another process was quicker
            return True
        certificate = certify(
            model, initial_state, data, generator=fresh(), checkpoint=parts, progress=progress,
            **settings,
        )  # fmt: skip
        certificate.save(place, overwrite=again)
        for part in parts.glob("*.safetensors"):
            part.unlink()
    with suppress(OSError):
        parts.rmdir()  # if a killed process has made it
    return False


def _finished(
    place: Path,
    request: Request,
    model: nn.Module,
    initial_state: State,
    data: Any,
    progress: Callable[[Progress], None] | None,
) -> bool:
    """Whether the certificate of this request exists; one that is refuted is an error."""
    if not place.exists():
        return False
    certificate = Certificate.load(place)
    io.refuse_difference(
        repr(str(place)), certificate.request, request, "a certificate", remedy=_REMEDY
    )
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
