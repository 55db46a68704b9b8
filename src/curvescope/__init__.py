"""The curvature of neural networks: exact where possible, with error bars where not."""

from curvescope._checks import CurvescopeError, ModelError
from curvescope.data import Dataset, dataset, gaussian_mixture
from curvescope.networks import NetworkSpec, initialise, network
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
from curvescope.training import (
    Recipe,
    Trained,
    evaluate,
    load_network,
    load_weights,
    save_weights,
    train,
    train_many,
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
    "NetworkSpec",
    "ParamSpace",
    "Problem",
    "Recipe",
    "SpectralMeasure",
    "Status",
    "Trained",
    "Tridiagonal",
    "block_lanczos",
    "dataset",
    "deflate",
    "diagonal",
    "eigenpairs",
    "evaluate",
    "exact_spectrum",
    "frobenius",
    "gaussian_mixture",
    "initialise",
    "knockout",
    "kpm",
    "lanczos",
    "load_network",
    "load_weights",
    "logdet",
    "network",
    "rank_bound",
    "rank_degeneracy",
    "save_weights",
    "spectral_measure",
    "subspace_iteration",
    "trace",
    "train",
    "train_many",
]
