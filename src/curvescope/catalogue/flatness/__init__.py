"""Entries for *Flatness is a False Friend* (FF)."""

from curvescope.catalogue.entry import Entry
from curvescope.catalogue.flatness import (
    batch_norm,
    degeneracy,
    logistic,
    mlp,
    optimisers,
    rescaling,
)

ENTRIES: tuple[Entry, ...] = (
    rescaling.ENTRY,
    degeneracy.ENTRY,
    logistic.ENTRY,
    mlp.ENTRY,
    batch_norm.ENTRY,
    optimisers.ENTRY,
)
