"""Entries for *Traces of Class/Cross-Class Structure* (TR)."""

from curvescope.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
