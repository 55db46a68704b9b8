"""Entries for *Flatness is a False Friend* (FF)."""

from curvescope.catalogue.entry import Entry
from curvescope.catalogue.flatness import (
    batch_norm,
    by_network,
    degeneracy,
    degeneracy_residual,
    logistic,
    mlp,
    optimisers,
    optimisers_100,
    rescaling,
)

ENTRIES: tuple[Entry, ...] = (
    rescaling.ENTRY,
    degeneracy.ENTRY,
    degeneracy_residual.ENTRY,
    logistic.ENTRY,
    mlp.ENTRY,
    *by_network.ENTRIES,
    batch_norm.ENTRY,
    optimisers.ENTRY,
    optimisers_100.ENTRY,
)
