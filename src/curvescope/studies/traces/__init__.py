"""Entries for *Traces of Class/Cross-Class Structure* (TR)."""

from curvescope.studies.entry import Entry
from curvescope.studies.traces import (
    anatomy,
    attribution,
    datasets,
    dynamics,
    features_errors,
    kfac,
    logistic_model,
    spectra,
    tails,
    verification,
)

ENTRIES: tuple[Entry, ...] = (
    anatomy.ENTRY,
    spectra.ENTRY,
    *datasets.ENTRIES,
    attribution.ENTRY,
    dynamics.ENTRY,
    features_errors.ENTRY,
    kfac.ENTRY,
    logistic_model.ENTRY,
    verification.ENTRY,
    tails.ENTRY,
)
