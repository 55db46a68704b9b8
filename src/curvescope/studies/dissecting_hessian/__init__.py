"""Entries for *Dissecting Hessian* (DH)."""

from curvescope.studies.dissecting_hessian import clustering, structures, table_9, training
from curvescope.studies.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    structures.ENTRY,
    training.ENTRY,
    clustering.ENTRY,
    table_9.ENTRY,
)
