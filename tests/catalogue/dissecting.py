"""The entries of DH at smoke scale, each computed once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from curvescope.catalogue.dissecting_hessian import ENTRIES
from curvescope.catalogue.entry import Outcome, Row, Settings

NAMES = {entry.name.split("/")[1]: entry for entry in ENTRIES}


@cache
def settings() -> Settings:
    """A work folder of their own."""
    return Settings("smoke", Path(mkdtemp(prefix="curvescope-")))


@cache
def outcome(name: str) -> Outcome:
    """What an entry finds."""
    return NAMES[name].run(settings())


def row(name: str, start: str) -> Row:
    """The one row of an entry that starts like this."""
    (found,) = [row for row in outcome(name).rows if row.what.startswith(start)]
    return found
