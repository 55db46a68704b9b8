"""The entries of DH at smoke scale, each computed once for all tests."""

from __future__ import annotations

from curvescope.studies.dissecting_hessian import ENTRIES
from curvescope.studies.entry import Row
from tests.studies.smoke import smoke

NAMES, settings, outcome = smoke(ENTRIES)


def row(name: str, start: str) -> Row:
    """The one row of an entry that starts like this."""
    (found,) = [row for row in outcome(name).rows if row.what.startswith(start)]
    return found
