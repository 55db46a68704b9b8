"""Entries for *Dissecting Hessian* (DH)."""

from curvescope.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
