"""All entries, and finding them by name."""

from __future__ import annotations

from fnmatch import fnmatchcase

from curvescope.errors import CurvescopeError
from curvescope.studies.entry import Entry


def entries() -> tuple[Entry, ...]:
    """Every entry, paper by paper.

    >>> names = [entry.name for entry in entries()]
    >>> len(names) == len(set(names))
    True
    """
    from curvescope.studies import dissecting_hessian

    return tuple(dissecting_hessian.ENTRIES)


def find(name: str) -> tuple[Entry, ...]:
    """The entries with this name, of this paper (its folder), or by a pattern (``*/table-*``).

    Raises:
        CurvescopeError: If there is none.

    >>> find("dissecting")
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: reproduce: there is no entry 'dissecting'; ...
    """
    found = tuple(
        entry
        for entry in entries()
        if fnmatchcase(entry.name, name) or entry.name.startswith(f"{name.rstrip('/')}/")
    )
    if not found:
        names = ", ".join(entry.name for entry in entries())
        rule = f"there is no entry {name!r}"
        raise CurvescopeError("reproduce", rule, remedy=f"entries are {names}")
    return found
