"""Entries for *Flatness is a False Friend* (FF)."""

from curvescope.studies.entry import Entry
from curvescope.studies.flatness import (
    batch_norm,
    by_network,
    degeneracy,
    degeneracy_residual,
    logistic,
    mlp,
    optimizers,
    optimizers_100,
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
    optimizers.ENTRY,
    optimizers_100.ENTRY,
)
