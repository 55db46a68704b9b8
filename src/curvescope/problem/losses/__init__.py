"""Losses: a file for each family, and what recognizes them.

For the standard losses the output Hessian is applied in closed form; any other callable is
differentiated twice.
"""

from curvescope.problem.losses.base import Loss, LossAt
from curvescope.problem.losses.binary import BinaryLogistic
from curvescope.problem.losses.cross_entropy import CrossEntropy, CrossEntropyAt
from curvescope.problem.losses.custom import UserLoss
from curvescope.problem.losses.recognize import as_loss
from curvescope.problem.losses.squared import MeanSquare, MeanSquareAt

__all__ = [
    "BinaryLogistic",
    "CrossEntropy",
    "CrossEntropyAt",
    "Loss",
    "LossAt",
    "MeanSquare",
    "MeanSquareAt",
    "UserLoss",
    "as_loss",
]
