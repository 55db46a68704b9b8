"""Sharpness and generalisation: measures, PP's metric, a trace penalty, reparametrisations."""

from curvescope.sharpness.comparison import Comparison, RankCorrelation, compare_reports
from curvescope.sharpness.deep_linear import DeepLinear
from curvescope.sharpness.degeneracy import DegeneracyHistory, DegeneracyPoint, rank_history
from curvescope.sharpness.measures import CurvatureMeasures
from curvescope.sharpness.metric import PacMetric, pac_metric
from curvescope.sharpness.minibatch import MinibatchMetric, minibatch_metric
from curvescope.sharpness.regulariser import Objective, TraceRegulariser
from curvescope.sharpness.report import SharpnessReport, sharpness, sharpness_by_mode
from curvescope.sharpness.rescale import Congruence, Rescaled, rescale
from curvescope.sharpness.scores import Scores, WeightNorms, scores, weight_norms
from curvescope.sharpness.subsampling import Subsample, SubsamplingStudy, subsampling_study

__all__ = [
    "Comparison",
    "Congruence",
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
    "Subsample",
    "SubsamplingStudy",
    "TraceRegulariser",
    "WeightNorms",
    "compare_reports",
    "minibatch_metric",
    "pac_metric",
    "rank_history",
    "rescale",
    "scores",
    "sharpness",
    "sharpness_by_mode",
    "subsampling_study",
    "weight_norms",
]
