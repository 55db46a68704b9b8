"""Entries for *A Practical PAC-Bayes Generalization Bound* (PP)."""

from curvescope.studies.entry import Entry
from curvescope.studies.practical_bound import (
    ordering,
    regularizer,
    regularizer_wide,
    subsampling,
    tables,
)

ENTRIES: tuple[Entry, ...] = (
    subsampling.ENTRY,
    ordering.ENTRY,
    tables.ENTRY,
    regularizer.ENTRY,
    regularizer_wide.ENTRY,
)
