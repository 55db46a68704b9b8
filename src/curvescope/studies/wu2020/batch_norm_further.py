"""Fully connected networks with batch norm, as in the study ``batch-norm``."""

from curvescope.studies.wu2020.batch_norm import run

__all__ = ["run"]
