"""Where the files of a data set may lie, and finding them there.

Roots are searched in this order: the caller's ``root``, ``$CURVESCOPE_DATA``, the user's cache.
Below each, the folders of the catalog are tried, then the root itself, so that a folder made by
torchvision, by hand or by :func:`curvescope.data.fetch` works as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from curvescope.data.sources import SOURCES, File, Source
from curvescope.errors import CurvescopeError

VARIABLE = "CURVESCOPE_DATA"


class MissingFiles(CurvescopeError):
    """The files of a data set are not there; the message says what to put where."""


@dataclass(frozen=True)
class Place:
    """A folder with the files of a data set, or the archive that holds that folder."""

    path: Path
    archived: bool = False


def cache_folder() -> Path:
    r"""The user's cache for curvescope, by the conventions of the platform.

    ``$XDG_CACHE_HOME/curvescope`` where that variable is set, else ``~/Library/Caches/curvescope``
    on macOS, ``%LOCALAPPDATA%\curvescope\Cache`` on Windows, ``~/.cache/curvescope`` elsewhere.
    """
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the convention says to ignore others
        return Path(xdg) / "curvescope"
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "curvescope" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "curvescope"
    return home / ".cache" / "curvescope"


def roots(where: str, root: str | os.PathLike[str] | None) -> list[Path]:
    """The folders to search, in order; a ``root`` that does not exist is a mistake."""
    folders = destinations(root)
    if root is not None and not os.path.isdir(folders[0]):
        rule = "`root` must be a folder that exists"
        raise CurvescopeError(where, rule, given=repr(os.fspath(root)))
    return folders


def destinations(root: str | os.PathLike[str] | None) -> list[Path]:
    """The folders that ``roots`` searches, whether they exist or not; downloads go to the first."""
    first = [] if root is None else [os.fspath(root)]
    variable = os.environ.get(VARIABLE)
    named = [Path(os.path.expanduser(folder)) for folder in (*first, variable) if folder]
    return [folder.absolute() for folder in (*named, cache_folder() / "data")]


def find(source: Source, split: str, folders: Sequence[Path]) -> Place | None:
    """The first place that has every file of the split."""
    for root in folders:
        for place in _candidates(source, root):
            if place.archived:
                if os.path.isfile(place.path):
                    return place
            elif all(_present(place.path, file) for file in source.files[split]):
                return place
    return None


def path_of(folder: Path, file: File) -> Path:
    """The file as it lies in the folder: plain where it can be, otherwise gzipped."""
    plain = folder / file.name
    return plain if os.path.isfile(plain) else folder / f"{file.name}.gz"


def missing(where: str, source: Source, split: str, folders: Sequence[Path]) -> MissingFiles:
    """The error for a split that no place has: what is needed, where to put it, how to get it."""
    names = [file.name for file in source.files[split]]
    needed = f"{names[0]} … {names[-1]}" if len(names) > 2 else " and ".join(names)
    gzipped = " (plain or .gz)" if source.format == "idx" else ""
    archive = f" or {source.archive}" if source.archive else ""
    rule = f"{needed}{gzipped}{archive} not found in {', '.join(map(str, folders))}"
    command = f"or run: curvescope data fetch {source.name} ({source.megabytes:.0f} MB)"
    into = f"into {folders[0] / source.home}, {command if source.mirrors else source.hint}"
    return MissingFiles(
        where,
        rule,
        remedy=f"put the files {into}",
        remedy_cli=f"name their folder with --root, put them {into}",
    )


def _candidates(source: Source, root: Path) -> Iterator[Place]:
    bases = [root / folder for folder in source.folders]
    if not _belongs_to_another(source, root):
        bases.append(root)
    for base in bases:
        if source.archive is not None:
            yield Place(base / source.inside)
        yield Place(base)
        if source.archive is not None:
            yield Place(base / source.archive, archived=True)


def _belongs_to_another(source: Source, root: Path) -> bool:
    """Whether the folder bears another set's name: MNIST and Fashion-MNIST share file names."""
    return any(
        root.as_posix().endswith(f"/{folder}")
        for other in SOURCES.values()
        if other.name != source.name
        for folder in other.folders
    )


def _present(folder: Path, file: File) -> bool:
    return os.path.isfile(
        path_of(folder, file)
    )  # unlike Path.is_file, silent where access is denied
