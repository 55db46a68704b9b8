"""Entries for *Traces of Class/Cross-Class Structure* (TR)."""

from curvescope.catalogue.entry import Entry
from curvescope.catalogue.traces import (
    attribution,
    dynamics,
    features_errors,
    kfac,
    logistic_model,
    spectra,
    tails,
    verification,
)

ENTRIES: tuple[Entry, ...] = (
    spectra.ENTRY,
    attribution.ENTRY,
    dynamics.ENTRY,
    features_errors.ENTRY,
    kfac.ENTRY,
    logistic_model.ENTRY,
    verification.ENTRY,
    tails.ENTRY,
)
