"""The function that is differentiated: model, loss, data and the parameters that vary."""

from curvescope.problem import losses
from curvescope.problem.losses import Loss
from curvescope.problem.params import ParamSpace
from curvescope.problem.problem import Problem

__all__ = ["Loss", "ParamSpace", "Problem", "losses"]
