"""The curvature of neural networks: exact where possible, with error bars where not.

A name is imported when it is first used, so that the command line need not wait for torch.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which would cost more than all the rest here
if TYPE_CHECKING:
    from curvescope._checks import CurvescopeError, ModelError
    from curvescope.certificates import Certificate
    from curvescope.certificates.certification import certify
    from curvescope.data import Dataset, dataset, gaussian_mixture
    from curvescope.figures.plot import plot
    from curvescope.flatness import (
        SharpnessReport,
        TraceRegularizer,
        compare_reports,
        minibatch_metric,
        pac_metric,
        rank_history,
        sharpness,
        sharpness_by_mode,
        subsampling_study,
    )
    from curvescope.flatness.rescaling import rescale
    from curvescope.networks import NetworkSpec, network
    from curvescope.networks.initialization import initialize
    from curvescope.operators.algebra import deflate, knockout
    from curvescope.operators.base import LinearOperator
    from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
    from curvescope.operators.hessian import Hessian
    from curvescope.operators.kronecker import KroneckerOperator
    from curvescope.operators.simple import Dense, Diagonal, Identity, LowRank
    from curvescope.problem import ParamSpace, Problem, losses
    from curvescope.spectra import (
        EigenPairs,
        Estimate,
        SpectralMeasure,
        Status,
        Tridiagonal,
        block_lanczos,
        diagonal,
        exact_spectrum,
        frobenius,
        rank_bound,
        rank_degeneracy,
        spectral_measure,
        subspace_iteration,
    )
    from curvescope.spectra.chebyshev import kpm
    from curvescope.spectra.eigensolver import eigenpairs
    from curvescope.spectra.exact import ExactSpectrum, log_distance
    from curvescope.spectra.log_determinant import logdet
    from curvescope.spectra.traces import trace
    from curvescope.spectra.tridiagonal import lanczos
    from curvescope.structure.autocorrelation import (
        autocorrelation_structure,
        autocorrelation_table,
    )
    from curvescope.structure.class_factors import cfac, layer_approximations
    from curvescope.structure.classes import ClassStructure, class_structure
    from curvescope.structure.clustering import logit_clusters, tsne
    from curvescope.structure.correspondences import correspondence, singular_structure
    from curvescope.structure.factors import KroneckerFactors, kronecker_factors
    from curvescope.structure.full_hessian import full_hessian_approximation, full_output_hessian
    from curvescope.structure.knockouts import class_knockouts, hessian_split
    from curvescope.structure.layer_pairs import layer_eigenpairs
    from curvescope.structure.layers import layer_statistics
    from curvescope.structure.outliers import attribute_outliers
    from curvescope.structure.output_hessian import output_hessian_theory, random_two_layer
    from curvescope.structure.overlaps import compare_eigenpairs, overlap, pairwise_overlap
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
    "TraceRegularizer",
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
    "initialize",
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
    "losses",
    "minibatch_metric",
    "network",
    "output_hessian_theory",
    "overlap",
    "overlap_prediction",
    "pac_metric",
    "pairwise_overlap",
    "plot",
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

_HOMES = {
    "curvescope.errors": ("CurvescopeError", "ModelError"),
    "curvescope.certificates": ("Certificate",),
    "curvescope.certificates.certification": ("certify",),
    "curvescope.data": ("Dataset", "dataset", "gaussian_mixture"),
    "curvescope.figures.plot": ("plot",),
    "curvescope.networks": ("NetworkSpec", "network"),
    "curvescope.networks.initialization": ("initialize",),
    "curvescope.operators.algebra": ("deflate", "knockout"),
    "curvescope.operators.base": ("LinearOperator",),
    "curvescope.operators.gauss_newton": ("EmpiricalFisher", "GaussNewton", "MonteCarloFisher"),
    "curvescope.operators.hessian": ("Hessian",),
    "curvescope.operators.kronecker": ("KroneckerOperator",),
    "curvescope.operators.simple": ("Dense", "Diagonal", "Identity", "LowRank"),
    "curvescope.problem": ("ParamSpace", "Problem", "losses"),
    "curvescope.flatness": (
        "SharpnessReport",
        "TraceRegularizer",
        "compare_reports",
        "minibatch_metric",
        "pac_metric",
        "rank_history",
        "sharpness",
        "sharpness_by_mode",
        "subsampling_study",
    ),
    "curvescope.flatness.rescaling": ("rescale",),
    "curvescope.spectra": (
        "EigenPairs",
        "Estimate",
        "SpectralMeasure",
        "Status",
        "Tridiagonal",
        "block_lanczos",
        "diagonal",
        "exact_spectrum",
        "frobenius",
        "rank_bound",
        "rank_degeneracy",
        "spectral_measure",
        "subspace_iteration",
    ),
    "curvescope.spectra.eigensolver": ("eigenpairs",),
    "curvescope.spectra.exact": ("ExactSpectrum", "log_distance"),
    "curvescope.spectra.chebyshev": ("kpm",),
    "curvescope.spectra.tridiagonal": ("lanczos",),
    "curvescope.spectra.log_determinant": ("logdet",),
    "curvescope.spectra.traces": ("trace",),
    "curvescope.structure.autocorrelation": ("autocorrelation_structure", "autocorrelation_table"),
    "curvescope.structure.class_factors": ("cfac", "layer_approximations"),
    "curvescope.structure.classes": ("ClassStructure", "class_structure"),
    "curvescope.structure.clustering": ("logit_clusters", "tsne"),
    "curvescope.structure.correspondences": ("correspondence", "singular_structure"),
    "curvescope.structure.factors": ("KroneckerFactors", "kronecker_factors"),
    "curvescope.structure.full_hessian": ("full_hessian_approximation", "full_output_hessian"),
    "curvescope.structure.knockouts": ("class_knockouts", "hessian_split"),
    "curvescope.structure.layer_pairs": ("layer_eigenpairs",),
    "curvescope.structure.layers": ("layer_statistics",),
    "curvescope.structure.outliers": ("attribute_outliers",),
    "curvescope.structure.output_hessian": ("output_hessian_theory", "random_two_layer"),
    "curvescope.structure.overlaps": ("compare_eigenpairs", "overlap", "pairwise_overlap"),
    "curvescope.structure.prediction": ("overlap_prediction",),
    "curvescope.structure.traces": ("class_traces",),
    "curvescope.training": (
        "Recipe",
        "Trained",
        "evaluate",
        "load_network",
        "load_weights",
        "save_weights",
        "train",
        "train_many",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker knows the names above and should refuse others

    def __getattr__(name: str) -> object:
        """A public name from its module, or a folder of the package."""
        if name in _HOME_OF:
            value = getattr(import_module(_HOME_OF[name]), name)
            globals()[name] = value
            return value
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
