"""The inputs' second moment in wider and deeper networks, as in the study ``autocorrelation``."""

from curvescope.studies.wu2020.autocorrelation import run

__all__ = ["run"]
