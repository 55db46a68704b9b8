"""The curvature of neural networks: exact where possible, with error bars where not."""

from curvescope._checks import CurvescopeError, ModelError
from curvescope.data import Dataset, dataset, gaussian_mixture
from curvescope.operators.algebra import deflate, knockout
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.hessian import Hessian
from curvescope.operators.simple import Dense, Diagonal, Identity, LowRank
from curvescope.problem import ParamSpace, Problem
from curvescope.spectra import (
    EigenPairs,
    Estimate,
    SpectralMeasure,
    Status,
    Tridiagonal,
    block_lanczos,
    diagonal,
    eigenpairs,
    exact_spectrum,
    frobenius,
    kpm,
    lanczos,
    logdet,
    rank_bound,
    rank_degeneracy,
    spectral_measure,
    subspace_iteration,
    trace,
)

__all__ = [
    "CurvescopeError",
    "Dataset",
    "Dense",
    "Diagonal",
    "EigenPairs",
    "EmpiricalFisher",
    "Estimate",
    "GaussNewton",
    "Hessian",
    "Identity",
    "LinearOperator",
    "LowRank",
    "ModelError",
    "MonteCarloFisher",
    "ParamSpace",
    "Problem",
    "SpectralMeasure",
    "Status",
    "Tridiagonal",
    "block_lanczos",
    "dataset",
    "deflate",
    "diagonal",
    "eigenpairs",
    "exact_spectrum",
    "frobenius",
    "gaussian_mixture",
    "knockout",
    "kpm",
    "lanczos",
    "logdet",
    "rank_bound",
    "rank_degeneracy",
    "spectral_measure",
    "subspace_iteration",
    "trace",
]
