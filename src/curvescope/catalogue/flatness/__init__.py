"""Entries for *Flatness is a False Friend* (FF)."""

from curvescope.catalogue.entry import Entry
from curvescope.catalogue.flatness import (
    batch_norm,
    by_network,
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
    *by_network.ENTRIES,
    batch_norm.ENTRY,
    optimisers.ENTRY,
)
