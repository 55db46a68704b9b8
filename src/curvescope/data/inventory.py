"""The list of data sets, where their files are, and the verification of these files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from curvescope.data import topics
from curvescope.data.contents import contents
from curvescope.data.embedded import EMBEDDED, Embedded, verified
from curvescope.data.labels import SPLITS
from curvescope.data.names import parse
from curvescope.data.places import find, missing, roots
from curvescope.data.sources import SOURCES, Source
from curvescope.errors import CurvescopeError


@dataclass(frozen=True)
class Entry:
    """A data set: its size, where its files are, and the size of a download.

    ``location`` is a folder or archive, ``"package"`` for an embedded set, ``"Python"`` for one
    that Python carries, ``None`` for a missing one; ``megabytes`` is ``None`` where there is
    nothing to download.
    """

    name: str
    title: str
    classes: int
    train: int
    test: int
    shape: tuple[int, ...]
    location: str | None
    megabytes: float | None


def inventory(root: str | os.PathLike[str] | None = None) -> list[Entry]:
    """Every data set by name; files are looked for, not read.

    Args:
        root: A folder to look in before ``$CURVESCOPE_DATA`` and the user's cache.

    Raises:
        CurvescopeError: If ``root`` is not a folder.

    >>> [entry.name for entry in inventory() if entry.location == "package"]
    ['mnist-6k', 'fashion-mnist-3k', 'digits']
    """
    folders = roots("inventory", root)
    entries = [_entry(embedded, "package", None) for embedded in EMBEDDED.values()]
    entries += _text()
    for source in SOURCES.values():
        places = (find(source, split, folders) for split in SPLITS)
        location = next((str(place.path) for place in places if place is not None), None)
        megabytes = round(source.megabytes, 1) if source.mirrors else None
        entries.append(_entry(source, location, megabytes))
    return entries


def _text() -> list[Entry]:
    """Python's documentation; nothing where a Python has been stripped of it."""
    try:
        train, test = (topics.python_topics(split) for split in SPLITS)
    except CurvescopeError:
        return []
    title = "the text of Python's help(), 128 characters each"
    sizes = {"train": len(train), "test": len(test)}
    return [
        Entry(topics.NAME, title, train.classes, **sizes, shape=train.input_shape,
              location="Python", megabytes=None)
    ]  # fmt: skip


def _entry(source: Source | Embedded, location: str | None, megabytes: float | None) -> Entry:
    return Entry(
        name=source.name,
        title=source.title,
        classes=source.classes,
        train=source.sizes["train"],
        test=source.sizes["test"],
        shape=source.shape,
        location=location,
        megabytes=megabytes,
    )


def verify(name: str, root: str | os.PathLike[str] | None = None) -> list[str]:
    """Compare the checksum of every file of a data set that is there, and return their paths.

    Unlike :func:`curvescope.data.dataset`, it reads files again that were verified before.

    Args:
        name: The data set.
        root: A folder to look in before ``$CURVESCOPE_DATA`` and the user's cache.

    Raises:
        MissingFiles: If neither split is there.
        CurvescopeError: If a file is not the published one.

    >>> verify("digits")
    ['digits.csv.gz']
    """
    where = f"verify({name!r})"
    base = parse(where, name).base
    if base in EMBEDDED:
        verified(where, EMBEDDED[base])
        return [EMBEDDED[base].file]
    if base not in SOURCES:  # a mixture has no files, and Python's text none of ours
        return []
    source, folders = SOURCES[base], roots(where, root)
    files: list[str] = []
    for split in SPLITS:
        place = find(source, split, folders)
        if place is not None:
            files += [path for path, _ in contents(where, source, split, place, afresh=True)]
    if not files:
        raise missing(where, source, "train", folders)
    return list(dict.fromkeys(files))
