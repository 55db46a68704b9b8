"""Entries for *Flatness is a False Friend* (FF)."""

from curvescope.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()
