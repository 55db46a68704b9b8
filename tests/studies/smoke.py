"""Entries at smoke scale, each computed once for all tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from curvescope.studies.entry import Entry, Outcome, Settings

Smoke = tuple[dict[str, Entry], Callable[[], Settings], Callable[[str], Outcome]]


def smoke(entries: Iterable[Entry]) -> Smoke:
    """The entries of a paper by their short names, their settings, and what an entry finds."""
    names = {entry.name.split("/")[1]: entry for entry in entries}

    @cache
    def settings() -> Settings:
        return Settings("smoke", Path(mkdtemp(prefix="curvescope-")))

    @cache
    def outcome(name: str) -> Outcome:
        return names[name].run(settings())

    return names, settings, outcome
