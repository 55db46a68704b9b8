"""The sections of a report, each built from a run directory alone."""
