"""The full Hessian of deeper networks, as in the study ``full-hessian``."""

from curvescope.studies.wu2020.full_hessian import run

__all__ = ["run"]
