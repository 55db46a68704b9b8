"""Run directories: one process works in a folder at a time, and always with one configuration.

A run directory is a folder with a ``config.json``, the configuration that determines all numbers,
which is written first. Work in the folder can only be continued with the same configuration.
Analyses, training runs, demonstrations and unfinished certificates are stored in such folders; each
decides for itself what else is in there. :func:`claimed` opens one; :func:`held` is the part of it
that keeps other processes out.
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
from curvescope.io.files import PathLike, part_files, remove_parts, writes
from curvescope.io.lock import LOCK, locked
from curvescope.io.stored import load, save

CONFIG = "config.json"
_REMEDY = "name another folder, or remove this one"
_REMEDY_CLI = "name another folder with --out, or remove it"


@contextmanager
def held(path: PathLike) -> Iterator[Path]:
    """Keep other processes out of a folder while the block runs.

    Args:
        path: The folder. It is created if it does not exist, with its parents; those created here
            that are empty at the end are removed again.

    Raises:
        CurvescopeError: If it cannot be created or written, or another process holds it.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> with held(root / "runs" / "first") as place:
    ...     place.is_dir()
    True
    >>> list(root.iterdir())
    []
    """
    place = Path(path)
    if not writes():  # another process holds it
        yield place
        return
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
    """Open the run directory of a configuration and keep other processes out of it.

    Partial files of a killed process are removed. If the block adds nothing to the directory, its
    configuration is removed again at the end.

    Args:
        path: A folder that is new, empty, or already belongs to the same configuration.
        config: The configuration, a frozen dataclass.
        what: What errors call the contents, such as ``"a run"``.
        remedy: The advice in errors about a folder that holds something else.
        remedy_cli: The same advice, for users of the command line.
        replace: Whether to clear a folder that belongs to another configuration of the same type.

    Raises:
        CurvescopeError: If the folder holds something else or belongs to another configuration (the
            message shows the difference), or another process is working in it. Nothing has been
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
    if not writes():
        yield place
        return
    refuse = partial(
        refuse_others, place, config, what=what, remedy=remedy, remedy_cli=remedy_cli,
        replace=replace,
    )  # fmt: skip
    refuse()
    with held(place):
        refuse()  # another process may have come first
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
    """Refuse a folder that :func:`claimed`, with the same arguments, could not open.

    Raises:
        CurvescopeError: If it holds something else or belongs to another configuration.
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
    """Refuse to continue ``there`` with the configuration ``here`` if they differ.

    Raises:
        CurvescopeError: If they differ; the message lists the differences.
    """
    different = _differences(there, here)
    if different:
        rule = f"holds {what} with another configuration ({in_words(different)})"
        raise CurvescopeError(where, rule, remedy=remedy, remedy_cli=remedy_cli)


def _differences(there: Any, here: Any) -> list[str]:
    return differences(encode(there)[0], encode(here)[0])


def _clear(place: Path) -> None:
    """Remove everything but the lock, which this process holds."""
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()
