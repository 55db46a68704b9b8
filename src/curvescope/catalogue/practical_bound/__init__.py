"""Entries for *A Practical PAC-Bayes Bound* (PP)."""

from curvescope.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
