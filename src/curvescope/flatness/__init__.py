"""Sharpness and generalization: measures, a PAC-Bayes metric, a trace penalty, rescaling."""

from curvescope.flatness.comparison import Comparison, RankCorrelation, compare_reports
from curvescope.flatness.deep_linear import DeepLinear
from curvescope.flatness.degeneracy import DegeneracyHistory, DegeneracyPoint, rank_history
from curvescope.flatness.loss_and_curvature import (
    CurvatureBound,
    ShiftEstimate,
    curvature_bound,
    shift_estimate,
)
from curvescope.flatness.measures import CurvatureMeasures
from curvescope.flatness.metric import PacMetric, pac_metric
from curvescope.flatness.minibatch import MinibatchMetric, minibatch_metric
from curvescope.flatness.network_scores import Scores, WeightNorms, scores, weight_norms
from curvescope.flatness.regularizer import Objective, TraceRegularizer
from curvescope.flatness.report import SharpnessReport, sharpness, sharpness_by_mode
from curvescope.flatness.rescaling import Congruence, Rescaled, rescale
from curvescope.flatness.subsampling import Subsample, SubsamplingStudy, subsampling_study

__all__ = [
    "Comparison",
    "Congruence",
    "CurvatureBound",
    "CurvatureMeasures",
    "DeepLinear",
    "DegeneracyHistory",
    "DegeneracyPoint",
    "MinibatchMetric",
    "Objective",
    "PacMetric",
    "RankCorrelation",
    "Rescaled",
    "Scores",
    "SharpnessReport",
    "ShiftEstimate",
    "Subsample",
    "SubsamplingStudy",
    "TraceRegularizer",
    "WeightNorms",
    "compare_reports",
    "curvature_bound",
    "minibatch_metric",
    "pac_metric",
    "rank_history",
    "rescale",
    "scores",
    "sharpness",
    "sharpness_by_mode",
    "shift_estimate",
    "subsampling_study",
    "weight_norms",
]
