"""The curvature of neural networks: exact where possible, with error bars where not."""

from curvescope._checks import CurvescopeError, ModelError
from curvescope.certificates import Certificate, certify
from curvescope.data import Dataset, dataset, gaussian_mixture
from curvescope.networks import NetworkSpec, initialise, network
from curvescope.operators.algebra import deflate, knockout
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.hessian import Hessian
from curvescope.operators.kronecker import KroneckerOperator
from curvescope.operators.simple import Dense, Diagonal, Identity, LowRank
from curvescope.problem import ParamSpace, Problem
from curvescope.sharpness import (
    SharpnessReport,
    TraceRegulariser,
    compare_reports,
    minibatch_metric,
    pac_metric,
    rank_history,
    rescale,
    sharpness,
    sharpness_by_mode,
    subsampling_study,
)
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
from curvescope.spectra.exact import ExactSpectrum, log_distance
from curvescope.structure.autocorrelation import autocorrelation_structure, autocorrelation_table
from curvescope.structure.cfac import cfac, layer_approximations
from curvescope.structure.classes import ClassStructure, class_structure
from curvescope.structure.clustering import logit_clusters, tsne
from curvescope.structure.correspondence import correspondence, singular_structure
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.full_hessian import full_hessian_approximation, full_output_hessian
from curvescope.structure.knockouts import class_knockouts, hessian_split
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.structure.layers import layer_statistics
from curvescope.structure.outliers import attribute_outliers
from curvescope.structure.output_hessian import output_hessian_theory, random_two_layer
from curvescope.structure.overlap import compare_eigenpairs, overlap, pairwise_overlap
from curvescope.structure.prediction import overlap_prediction
from curvescope.structure.traces import class_traces
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
    "Certificate",
    "ClassStructure",
    "CurvescopeError",
    "Dataset",
    "Dense",
    "Diagonal",
    "EigenPairs",
    "EmpiricalFisher",
    "Estimate",
    "ExactSpectrum",
    "GaussNewton",
    "Hessian",
    "Identity",
    "KroneckerFactors",
    "KroneckerOperator",
    "LinearOperator",
    "LowRank",
    "ModelError",
    "MonteCarloFisher",
    "NetworkSpec",
    "ParamSpace",
    "Problem",
    "Recipe",
    "SharpnessReport",
    "SpectralMeasure",
    "Status",
    "TraceRegulariser",
    "Trained",
    "Tridiagonal",
    "attribute_outliers",
    "autocorrelation_structure",
    "autocorrelation_table",
    "block_lanczos",
    "certify",
    "cfac",
    "class_knockouts",
    "class_structure",
    "class_traces",
    "compare_eigenpairs",
    "compare_reports",
    "correspondence",
    "dataset",
    "deflate",
    "diagonal",
    "eigenpairs",
    "evaluate",
    "exact_spectrum",
    "frobenius",
    "full_hessian_approximation",
    "full_output_hessian",
    "gaussian_mixture",
    "hessian_split",
    "initialise",
    "knockout",
    "kpm",
    "kronecker_factors",
    "lanczos",
    "layer_approximations",
    "layer_eigenpairs",
    "layer_statistics",
    "load_network",
    "load_weights",
    "log_distance",
    "logdet",
    "logit_clusters",
    "minibatch_metric",
    "network",
    "output_hessian_theory",
    "overlap",
    "overlap_prediction",
    "pac_metric",
    "pairwise_overlap",
    "random_two_layer",
    "rank_bound",
    "rank_degeneracy",
    "rank_history",
    "rescale",
    "save_weights",
    "sharpness",
    "sharpness_by_mode",
    "singular_structure",
    "spectral_measure",
    "subsampling_study",
    "subspace_iteration",
    "trace",
    "train",
    "train_many",
    "tsne",
]
