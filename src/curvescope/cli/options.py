"""Options that several commands share, with the same words and the same rules everywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from curvescope.errors import CurvescopeError


def _device(name: str) -> str:
    """Check the form of the name; whether the device can be used is checked later."""
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name) is None:
        rule = "must be auto, cpu, cuda (or cuda:1, …) or mps"
        raise CurvescopeError("--device", rule, given=repr(name))
    return name


def _folder(root: Path | None) -> Path | None:
    if root is not None and not os.path.isdir(os.path.expanduser(root)):
        raise CurvescopeError("--root", "must be a folder that exists", given=repr(str(root)))
    return root


def check_code(option: str, text: str) -> None:
    """Refuse a file that is named without a function."""
    if ":" not in text and os.path.exists(text):
        rule = f"must name a function of the file too, as {text}:build"
        raise CurvescopeError(f"{option} {text!r}", rule)


def writable(folder: Path) -> bool:
    """Whether this process may put files into a folder."""
    effective = os.access in os.supports_effective_ids
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)


def check_folder(option: str, folder: Path) -> None:
    """Refuse a folder for results that cannot be made or written, before the work; make nothing.

    Raises:
        CurvescopeError: If it is a file, or there is no permission.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        rule = f"{str(there)!r} is not a folder"
        raise CurvescopeError(f"{option} {str(folder)!r}", rule, remedy="name another one")
    if not writable(there):
        rule = "cannot be written (Permission denied)"
        raise CurvescopeError(f"{option} {str(folder)!r}", rule, remedy="name another one")


def check_apart(outputs: Mapping[str, Path], inputs: Mapping[str, Path | None]) -> None:
    """Refuse to write over an input, also where links give it another name.

    Args:
        outputs: The files that will be written, by the names of their options.
        inputs: The files that will be read, by the names of their options.

    Raises:
        CurvescopeError: If one of the outputs is one of the inputs.

    >>> check_apart({"--out": Path("w.safetensors")}, {"--weights": Path("./w.safetensors")})
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: --out 'w.safetensors': is --weights itself; ...
    """
    for name, output in outputs.items():
        for other, source in inputs.items():
            if source is not None and _same_file(output, source):
                rule = f"is {other} itself"
                raise CurvescopeError(f"{name} {str(output)!r}", rule, remedy="name another place")


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file: links and the file system's own idea of names count."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other)


Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", callback=_folder, help="The folder with the data files."),
]
DataSeed = Annotated[
    int | None,
    typer.Option(
        "--data-seed",
        min=0,
        metavar="N",
        help="Of random labels or sub-samples, as in training.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, metavar="N", help="Decides every random number.")
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="NAME", callback=_device, help="auto, cpu, cuda, cuda:1 or mps."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it will take, and stop there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")]
