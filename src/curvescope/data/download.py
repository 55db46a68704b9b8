"""Downloads, on request only: from the first mirror that has the right file."""

from __future__ import annotations

import errno
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from curvescope.data.contents import contents
from curvescope.data.labels import SPLITS
from curvescope.data.names import parse
from curvescope.data.places import destinations, find
from curvescope.data.sources import SOURCES, Download, Source
from curvescope.errors import CurvescopeError
from curvescope.identity import file_digest
from curvescope.io import atomic

_LOCAL = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}
_PATIENCE = 30  # seconds without an answer, after which a mirror is given up


class _NotGiven(Exception):
    """A mirror did not give the file; the message says why."""


def fetch(name: str, root: str | os.PathLike[str] | None = None, *, progress: bool = True) -> Path:
    """Download the files of a data set, compare their MD5, and return the folder they are in.

    They go below ``root``, else ``$CURVESCOPE_DATA``, else the user's cache, where
    :func:`curvescope.data.dataset` finds them. Mirrors are tried in turn until one gives a file
    with the right checksum; a file appears under its name only when it is complete. What is there
    already is not fetched again. Needs ``pooch``.

    Args:
        name: The data set; variants such as ``-R`` have the files of their base.
        root: The folder to put the files below; it is made if necessary.
        progress: Show a progress bar for each file (needs ``tqdm``).

    Raises:
        CurvescopeError: If there is nothing to fetch, no mirror answers with the right file, or the
            folder cannot be written. The message says what to put where by hand.

    >>> fetch("digits")
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: fetch('digits'): digits needs no files, ...
    """
    where = f"fetch({name!r})"
    base = parse(where, name).base
    source = SOURCES.get(base)
    if source is None:
        raise CurvescopeError(where, f"{base} needs no files, there is nothing to fetch")
    first = destinations(root)[0]
    present = _present(where, source, first)
    if present is not None:
        return present
    folder = first / source.home
    if not source.mirrors:
        remedy = f"put {_names(source)} into {folder}, {source.hint}"
        raise CurvescopeError(where, f"{base} is on no mirror", remedy=remedy)
    downloader = _downloader(where, source, folder, progress)
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in source.downloads:
            if not _has(folder / download.name, download.md5):
                _from_mirrors(where, source, download, folder, downloader)
    except OSError as error:
        _remove_empty(new)
        rule = f"cannot write to {folder} ({error.strerror})"
        raise CurvescopeError(where, rule, remedy="choose another `root`") from None
    except BaseException:
        _remove_empty(new)
        raise
    return folder


def _present(where: str, source: Source, root: Path) -> Path | None:
    """Where the files lie below the root, if all are there and right."""
    place = None
    for split in SPLITS:
        place = find(source, split, [root])
        if place is None:
            return None
        try:
            for _ in contents(where, source, split, place):
                pass
        except CurvescopeError:
            return None
    return None if place is None else place.path.parent if place.archived else place.path


def _downloader(where: str, source: Source, folder: Path, progress: bool) -> Any:
    try:
        import pooch
    except ModuleNotFoundError:
        rule = "downloading needs pooch (pip install 'curvescope[data]')"
        remedy = f"or put {_names(source)} into {folder} by hand"
        raise CurvescopeError(where, rule, remedy=remedy) from None
    return pooch.HTTPDownloader(
        progressbar=progress and find_spec("tqdm") is not None,
        chunk_size=2**16,
        timeout=_PATIENCE,
        # A server that compresses on the way would have us store something else.
        headers={"Accept-Encoding": "identity"},
    )


def _from_mirrors(
    where: str, source: Source, download: Download, folder: Path, downloader: Any
) -> None:
    reasons = []
    for mirror in source.mirrors:
        reason = _attempt(downloader, mirror + download.name, folder / download.name, download.md5)
        if reason is None:
            return
        reasons.append(f"{mirror}: {reason}")
    rule = f"no mirror gave {download.name} ({'; '.join(reasons)})"
    remedy = f"where there is no network, put {_names(source)} into {folder} by hand"
    raise CurvescopeError(where, rule, remedy=remedy)


def _attempt(downloader: Any, url: str, target: Path, md5: str) -> str | None:
    """Fetch one file; what went wrong if it did not arrive, in which case nothing is left of it."""
    try:
        with atomic(target) as temporary:
            _download(downloader, url, temporary)
            if not _has(temporary, md5):
                raise _NotGiven("a file with another checksum")
    except _NotGiven as error:
        return str(error)
    return None


def _download(downloader: Any, url: str, path: Path) -> None:
    try:
        downloader(url, str(path), None)
    except OSError as error:  # also everything that requests raises
        if error.errno in _LOCAL:
            raise
        name = type(error).__name__
        raise _NotGiven(str(error) if name == "HTTPError" else name) from None


def _has(path: Path, md5: str) -> bool:
    return path.is_file() and file_digest(path, "md5") == md5


def _names(source: Source) -> str:
    names = [download.name for download in source.downloads]
    *others, last = names or [source.files["train"][0].name]
    return f"{', '.join(others)} and {last}" if others else last


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
