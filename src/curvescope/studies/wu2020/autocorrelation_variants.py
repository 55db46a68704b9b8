"""The inputs' second moment in variants of networks, as in the study ``autocorrelation``."""

from curvescope.studies.wu2020.autocorrelation import run

__all__ = ["run"]
