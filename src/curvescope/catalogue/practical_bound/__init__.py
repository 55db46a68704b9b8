"""Entries for *A Practical PAC-Bayes Generalisation Bound* (PP)."""

from curvescope.catalogue.entry import Entry
from curvescope.catalogue.practical_bound import ordering, regulariser, subsampling

ENTRIES: tuple[Entry, ...] = (subsampling.ENTRY, ordering.ENTRY, regulariser.ENTRY)
