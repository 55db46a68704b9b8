"""The bytes of a data set's files, read from folders and archives and verified.

A file is compared with its MD5 when it is first used; its size and modification time are then kept
in the user's cache, and the comparison is left out for as long as they stay. Nothing is extracted
to disk, and nothing is remembered of a file that fails.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from curvescope.data.places import Place, cache_folder, path_of
from curvescope.data.sources import File, Source
from curvescope.errors import CurvescopeError
from curvescope.identity import checksum
from curvescope.io import read_json, write_json

# The largest file of the catalog has 170 MB; one that is longer, or unfolds to more, is foreign.
_LARGEST = 2**28
_ARCHIVE = 2**31
_UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, LookupError)

Stamp = list[int | str]


class Record:
    """Which files had the right contents, by size and modification time."""

    def __init__(self) -> None:
        self._path = cache_folder() / "verified.json"
        self._added: dict[str, Stamp] = {}
        self._stamps = self._read()

    def _read(self) -> dict[str, Stamp]:
        try:
            digests = read_json(self._path)
        except CurvescopeError:
            return {}
        return digests if isinstance(digests, dict) else {}

    def has(self, key: str, stamp: Stamp) -> bool:
        """Whether this file, as it lies there now, was verified before."""
        return self._stamps.get(key) == stamp

    def add(self, key: str, stamp: Stamp) -> None:
        """Record a file as verified."""
        self._added[key] = stamp

    def save(self) -> None:
        """Write the record; where it cannot be written, files are verified again next time."""
        if not self._added:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, {**self._read(), **self._added})
        except (OSError, ValueError):
            return


def contents(
    where: str, source: Source, split: str, place: Place, *, afresh: bool = False
) -> Iterator[tuple[str, bytes]]:
    """Each file of a split, in the order of the catalog: where it lies, and its verified bytes.

    Args:
        where: The beginning of error messages.
        source: The data set.
        split: ``"train"`` or ``"test"``.
        place: Where its files were found.
        afresh: Compare checksums even of files that were verified before.

    Raises:
        CurvescopeError: If a file cannot be read or is not the published one.
    """
    record = Record()
    files = source.files[split]
    reading = _archived(where, source, files, place.path) if place.archived else None
    for file in files:
        path = place.path if reading is not None else path_of(place.path, file)
        try:
            stat = path.stat()
            key = os.fspath(path.resolve())
        except OSError as error:
            raise _unreadable(where, source, path, error) from None
        if stat.st_size > _LARGEST:
            raise _too_long(where, source, path)
        stamp: Stamp = [stat.st_size, stat.st_mtime_ns, file.md5]
        label = str(path)
        if reading is not None:
            raw = reading[file.name]
            key, label = f"{key}::{file.name}", f"{file.name} in {path}"
        else:
            raw = _read(where, source, path)
        if afresh or not record.has(key, stamp):
            _compare(where, source, file, label, raw)
            record.add(key, stamp)
        yield label, raw
    record.save()


def _read(where: str, source: Source, path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            raw: bytes = stream.read(_LARGEST + 1)
    except _UNREADABLE as error:
        raise _unreadable(where, source, path, error) from None
    if len(raw) > _LARGEST:
        raise _too_long(where, source, path)
    return raw


def _archived(where: str, source: Source, files: tuple[File, ...], path: Path) -> dict[str, bytes]:
    """The files of a split out of their archive, in one pass over it, in memory."""
    members = {f"{source.inside}/{file.name}": file.name for file in files}
    files_read: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.offset > _ARCHIVE:
                    raise tarfile.TarError("it is far too long")
                name = members.get(member.name)
                if name is None or not member.isfile() or member.size > _LARGEST:
                    continue
                stream = archive.extractfile(member)
                if stream is not None:
                    files_read[name] = stream.read()
                if len(files_read) == len(members):
                    break
    except _UNREADABLE as error:
        raise _unreadable(where, source, path, error) from None
    absent = [file.name for file in files if file.name not in files_read]
    if absent:
        rule = f"{path} does not hold {source.inside}/{absent[0]}"
        raise CurvescopeError(where, rule, remedy=_again(source))
    return files_read


def _compare(where: str, source: Source, file: File, label: str, raw: bytes) -> None:
    md5 = checksum(raw, "md5")
    if md5 != file.md5:
        rule = (
            f"{label} is not the published file, it is cut short, changed or of another data set "
            f"(the MD5 of its contents is {md5}, not {file.md5})"
        )
        raise CurvescopeError(where, rule, remedy=_again(source))


def _too_long(where: str, source: Source, path: Path) -> CurvescopeError:
    rule = f"{path} is not a file of {source.name}, it is far too long"
    return CurvescopeError(where, rule, remedy=_again(source))


def _unreadable(where: str, source: Source, path: Path, error: Exception) -> CurvescopeError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    rule = f"{path} cannot be read ({reason})"
    return CurvescopeError(where, rule, remedy=_again(source))


def _again(source: Source) -> str:
    if source.mirrors:
        return f"remove it and run: curvescope data fetch {source.name}"
    return "replace it by the original"
