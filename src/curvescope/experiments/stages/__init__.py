"""The stages of an analysis: each computes one result of the run directory."""
