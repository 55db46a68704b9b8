"""Entries for *A Practical PAC-Bayes Generalisation Bound* (PP)."""

from curvescope.catalogue.entry import Entry
from curvescope.catalogue.practical_bound import (
    ordering,
    regulariser,
    regulariser_wide,
    subsampling,
    tables,
)

ENTRIES: tuple[Entry, ...] = (
    subsampling.ENTRY,
    ordering.ENTRY,
    tables.ENTRY,
    regulariser.ENTRY,
    regulariser_wide.ENTRY,
)
