"""Folders that belong to one process while it works, and to one configuration for ever.

A run directory is a folder with a ``config.json``: all that decides the numbers, written first. It
goes on with the same configuration alone. Analyses, trainings, demonstrations and unfinished
certificates lie in such folders; what lies beside ``config.json`` is their own affair.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from curvescope.errors import CurvescopeError
from curvescope.io.codec import encode
from curvescope.io.differences import differences, in_words
from curvescope.io.files import PathLike, part_files, remove_parts
from curvescope.io.lock import LOCK, locked
from curvescope.io.stored import load, save

CONFIG = "config.json"
_REMEDY = "name another folder, or remove this one"
_REMEDY_CLI = "name another folder with --out, or remove it"


@contextmanager
def held(path: PathLike) -> Iterator[Path]:
    """A folder for this process alone while the block runs; what stays empty is gone at the end.

    Args:
        path: Made with all above it, if it is not there.

    Raises:
        CurvescopeError: If it cannot be made or written, or another process holds it.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> with held(root / "runs" / "first") as place:
    ...     place.is_dir()
    True
    >>> list(root.iterdir())
    []
    """
    place = Path(path)
    made = [folder for folder in (place, *place.parents) if not folder.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CurvescopeError(
            repr(str(place)),
            f"cannot be used ({error.strerror})",
            remedy="name another folder",
            remedy_cli="name another folder with --out",
        ) from None
    try:
        with locked(place):
            yield place
    finally:
        with suppress(OSError):
            for folder in made:
                folder.rmdir()  # one that is not empty stays


@contextmanager
def claimed(
    path: PathLike,
    config: Any,
    *,
    what: str = "a run",
    remedy: str = _REMEDY,
    remedy_cli: str | None = _REMEDY_CLI,
    replace: bool = False,
) -> Iterator[Path]:
    """A run directory of one configuration, for this process alone while the block runs.

    What a killed process has begun to write there is removed. A directory with nothing but its
    configuration at the end is left empty.

    Args:
        path: A folder that is new, empty, or holds the same with the same configuration.
        config: What decides the numbers, a frozen dataclass.
        what: What errors call it.
        remedy: What to do about a folder that holds something else.
        remedy_cli: The same at the command line.
        replace: Whether one of the same kind with another configuration is removed.

    Raises:
        CurvescopeError: If the folder holds something else, or one with another configuration (the
            message shows the difference), or another process works in it; nothing has been
            changed then.

    >>> import tempfile
    >>> from dataclasses import dataclass
    >>> Settings = dataclass(frozen=True)(type("Settings", (), {"__annotations__": {"steps": int}}))
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> with claimed(folder, Settings(steps=10)) as place:
    ...     (place / "result").touch()
    >>> with claimed(folder, Settings(steps=20)):
    ...     pass
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: ...: holds a run with another configuration (steps is 10
    there and 20 here); name another folder, or remove this one
    """
    place = Path(path)
    refuse = partial(
        refuse_others, place, config, what=what, remedy=remedy, remedy_cli=remedy_cli,
        replace=replace,
    )  # fmt: skip
    refuse()
    with held(place):
        refuse()  # another process may have been quicker
        file = place / CONFIG
        if replace and file.exists() and _differences(load(file, type(config)), config):
            _clear(place)
        remove_parts(place)
        if not file.exists():
            save(file, config)
        try:
            yield place
        finally:
            if {entry.name for entry in place.iterdir()} <= {CONFIG, LOCK}:
                file.unlink(missing_ok=True)


def refuse_others(
    place: Path,
    config: Any,
    *,
    what: str = "a run",
    remedy: str = _REMEDY,
    remedy_cli: str | None = _REMEDY_CLI,
    replace: bool = False,
) -> None:
    """Refuse a folder that is not that of a configuration, nor free; arguments of :func:`claimed`.

    Raises:
        CurvescopeError: If it holds something else, or one with another configuration.
    """
    where = repr(str(place))
    if place.exists() and not place.is_dir():
        cli = None if remedy_cli is None else "name a folder with --out"
        raise CurvescopeError(where, "is a file", remedy="name a folder", remedy_cli=cli)
    if (place / CONFIG).exists():
        there = load(place / CONFIG, type(config), remedy=remedy)
        if not replace:
            refuse_difference(where, there, config, what, remedy=remedy, remedy_cli=remedy_cli)
    elif place.is_dir() and not set(place.iterdir()) <= {place / LOCK, *part_files(place)}:
        rule = "is neither empty nor a run directory"
        raise CurvescopeError(where, rule, remedy=remedy, remedy_cli=remedy_cli)


def refuse_difference(
    where: str, there: Any, here: Any, what: str, *, remedy: str, remedy_cli: str | None = None
) -> None:
    """Refuse a configuration for another one.

    Raises:
        CurvescopeError: With the differences.
    """
    different = _differences(there, here)
    if different:
        rule = f"holds {what} with another configuration ({in_words(different)})"
        raise CurvescopeError(where, rule, remedy=remedy, remedy_cli=remedy_cli)


def _differences(there: Any, here: Any) -> list[str]:
    return differences(encode(there)[0], encode(here)[0])


def _clear(place: Path) -> None:
    """Remove everything; the lock stays with whoever holds it."""
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
