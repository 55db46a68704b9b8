"""Losses: a file for each family, and what recognizes them.

A loss says over what it averages, and has its Hessian at the output in closed form, a root of it,
its likelihood and its classes where there are any; any other callable is differentiated twice.
"""

from curvescope.problem.losses.base import Classes, DiagonalAt, Loss, LossAt, Terms, no_likelihood
from curvescope.problem.losses.binary import BinaryLogistic
from curvescope.problem.losses.cross_entropy import CrossEntropy
from curvescope.problem.losses.custom import Custom
from curvescope.problem.losses.groups import Groups
from curvescope.problem.losses.probes import DiagonalRoot
from curvescope.problem.losses.probes import OutputRoot as OutputRoot
from curvescope.problem.losses.recognize import BY_NAME as BY_NAME
from curvescope.problem.losses.recognize import as_loss
from curvescope.problem.losses.robust import Huber, SmoothL1
from curvescope.problem.losses.squared import MeanSquare

__all__ = [
    "BinaryLogistic",
    "Classes",
    "CrossEntropy",
    "Custom",
    "DiagonalAt",
    "DiagonalRoot",
    "Groups",
    "Huber",
    "Loss",
    "LossAt",
    "MeanSquare",
    "SmoothL1",
    "Terms",
    "as_loss",
    "no_likelihood",
]
