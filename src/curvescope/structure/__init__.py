"""Why the spectrum looks as it does: Kronecker factors, overlaps, classes, layers."""

from curvescope.structure.autocorrelation import (
    AutocorrelationStructure,
    AutocorrelationTable,
    Spread,
    autocorrelation_structure,
    autocorrelation_table,
)
from curvescope.structure.centers import CenterMatch, LogitCenters, logit_centers
from curvescope.structure.class_factors import (
    LayerApproximation,
    Misalignment,
    cfac,
    layer_approximations,
)
from curvescope.structure.classes import ClassStructure, class_structure
from curvescope.structure.clustering import Clusters, Embedding, LogitClusters, logit_clusters, tsne
from curvescope.structure.correspondences import (
    Correspondence,
    SingularStructure,
    correspondence,
    matricize,
    singular_structure,
)
from curvescope.structure.factors import KroneckerFactors, kronecker_factors
from curvescope.structure.full_hessian import (
    FullApproximation,
    FullOutputHessian,
    full_hessian_approximation,
    full_output_hessian,
)
from curvescope.structure.grouping import frequent_classes
from curvescope.structure.knockouts import HessianSplit, Knockouts, class_knockouts, hessian_split
from curvescope.structure.layer_comparison import LayerComparison, compare_layer
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.structure.layers import (
    LayerStatistics,
    MomentStatistics,
    WeightStatistics,
    layer_statistics,
)
from curvescope.structure.logistic import (
    CanonicalModel,
    ExpectedSpectrum,
    MisclassificationStudy,
    expected_fim,
    expected_spectrum,
    misclassification_study,
    output_hessians,
    sampled_fim,
    symmetric_probabilities,
)
from curvescope.structure.network_factors import (
    MeanCosines,
    mean_cosines,
    network_cfac,
    network_kfac,
)
from curvescope.structure.outliers import Attribution, Gap, Group, attribute_outliers, widest_gap
from curvescope.structure.output_hessian import (
    OutputTheory,
    RandomNetwork,
    closed_output_hessian,
    independent_output_hessian,
    output_hessian_theory,
    random_two_layer,
)
from curvescope.structure.overlaps import (
    EigenComparison,
    PairwiseOverlap,
    compare_eigenpairs,
    overlap,
    pairwise_overlap,
)
from curvescope.structure.prediction import OverlapPrediction, RankOneCondition, overlap_prediction
from curvescope.structure.ratios import SpectrumRatios, spectrum_ratios
from curvescope.structure.traces import ClassTraces, class_traces

__all__ = [
    "Attribution",
    "AutocorrelationStructure",
    "AutocorrelationTable",
    "CanonicalModel",
    "CenterMatch",
    "ClassStructure",
    "ClassTraces",
    "Clusters",
    "Correspondence",
    "EigenComparison",
    "Embedding",
    "ExpectedSpectrum",
    "FullApproximation",
    "FullOutputHessian",
    "Gap",
    "Group",
    "HessianSplit",
    "Knockouts",
    "KroneckerFactors",
    "LayerApproximation",
    "LayerComparison",
    "LayerStatistics",
    "LogitCenters",
    "LogitClusters",
    "MeanCosines",
    "Misalignment",
    "MisclassificationStudy",
    "MomentStatistics",
    "OutputTheory",
    "OverlapPrediction",
    "PairwiseOverlap",
    "RandomNetwork",
    "RankOneCondition",
    "SingularStructure",
    "SpectrumRatios",
    "Spread",
    "WeightStatistics",
    "attribute_outliers",
    "autocorrelation_structure",
    "autocorrelation_table",
    "cfac",
    "class_knockouts",
    "class_structure",
    "class_traces",
    "closed_output_hessian",
    "compare_eigenpairs",
    "compare_layer",
    "correspondence",
    "expected_fim",
    "expected_spectrum",
    "frequent_classes",
    "full_hessian_approximation",
    "full_output_hessian",
    "hessian_split",
    "independent_output_hessian",
    "kronecker_factors",
    "layer_approximations",
    "layer_eigenpairs",
    "layer_statistics",
    "logit_centers",
    "logit_clusters",
    "matricize",
    "mean_cosines",
    "misclassification_study",
    "network_cfac",
    "network_kfac",
    "output_hessian_theory",
    "output_hessians",
    "overlap",
    "overlap_prediction",
    "pairwise_overlap",
    "random_two_layer",
    "sampled_fim",
    "singular_structure",
    "spectrum_ratios",
    "symmetric_probabilities",
    "tsne",
    "widest_gap",
]
