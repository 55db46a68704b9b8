"""The curvature of neural networks: exact where possible, with error bars where not."""

from curvescope._checks import CurvescopeError, ModelError
from curvescope.operators.algebra import deflate, knockout
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.hessian import Hessian
from curvescope.operators.simple import Dense, Diagonal, Identity, LowRank
from curvescope.problem import ParamSpace, Problem

__all__ = [
    "CurvescopeError",
    "Dense",
    "Diagonal",
    "EmpiricalFisher",
    "GaussNewton",
    "Hessian",
    "Identity",
    "LinearOperator",
    "LowRank",
    "ModelError",
    "MonteCarloFisher",
    "ParamSpace",
    "Problem",
    "deflate",
    "knockout",
]
