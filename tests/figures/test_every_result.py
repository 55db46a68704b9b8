"""Every public type of result is drawn by ``cs.plot``, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope.certificates.methods import posterior_method
from curvescope.errors import CurvescopeError
from curvescope.figures.plot import results  # with all that is registered beside it
from curvescope.problem import Problem

pytest.importorskip("matplotlib")

NAMESPACES = (cs.spectra, cs.structure, cs.flatness, cs.certificates, cs.training)


def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@cache
def problem(seed: int = 0) -> Problem:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    torch.manual_seed(0)
    return Problem(model, (torch.randn(30, 4).double(), torch.arange(30) % 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(30, 4), torch.arange(30) % 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def H() -> cs.LinearOperator:
    return cs.Hessian(problem())


def factors(seed: int = 0) -> Any:
    return cs.kronecker_factors(problem(seed), layers="0", bias=False)["0"]


def pairs() -> Any:
    return cs.eigenpairs(H().block("0.weight"), 4, generator=g())


def certificate() -> Any:
    start = {name: 0.9 * p for name, p in model().state_dict().items()}
    method = posterior_method("local", epochs=3)
    return cs.certify(model(), start, data(), generator=g(), method=method, slack=0.05)


def compared() -> Any:
    reports = {
        name: cs.sharpness(problem(seed), test=problem(seed), generator=g())
        for name, seed in (("one", 0), ("two", 1))
    }
    return cs.flatness.compare_reports(reports)


st, sp = cs.structure, cs.spectra
DRAWN: dict[str, Callable[[], Any]] = {
    "SpectralMeasure": lambda: cs.spectral_measure(H(), steps=8, deflate=2, generator=g()),
    "Curve": lambda: cs.spectral_measure(H(), steps=8, generator=g()).density(),
    "ExactSpectrum": lambda: cs.exact_spectrum(H()),
    "ChebyshevMoments": lambda: cs.kpm(H(), degree=8, generator=g()),
    "EigenPairs": lambda: cs.eigenpairs(H(), 3, generator=g()),
    "Tridiagonal": lambda: cs.lanczos(H(), 6, generator=g()),
    "LanczosBounds": lambda: sp.lanczos_bounds(
        torch.tensor([2.0, 1.0, 0.0]), [2, 3], cosines=(0.6, 0.8)
    ),
    "PairwiseOverlap": lambda: st.pairwise_overlap([torch.eye(3), torch.eye(3)[:, [1, 0, 2]]]),
    "OverlapPrediction": lambda: st.overlap_prediction(factors(), factors(1)),
    "EigenComparison": lambda: st.compare_eigenpairs(pairs(), factors().operator().top(4)),
    "LayerComparison": lambda: st.compare_layer(factors(), pairs()),
    "SingularStructure": lambda: st.singular_structure(pairs(), 6),
    "Correspondence": lambda: cs.correspondence(pairs(), torch.eye(4).double(), side="input"),
    "AutocorrelationStructure": lambda: st.autocorrelation_structure(factors()),
    "OutputTheory": lambda: st.output_hessian_theory(problem(), {"2": _last()})["2"],
    "FullApproximation": lambda: st.full_hessian_approximation(problem(), 3),
    "MisclassificationStudy": lambda: st.misclassification_study(
        12, 3, signals=torch.tensor([1.0, 2.0]), per_class=20, generator=g()
    ),
    "Attribution": lambda: st.attribute_outliers(problem()),
    "ClassTraces": lambda: st.class_traces(cs.class_structure(problem())),
    "Knockouts": lambda: st.class_knockouts(problem()),
    "HessianSplit": lambda: st.hessian_split(problem(), generator=g()),
    "LayerStatistics": lambda: cs.layer_statistics(problem())["0"],
    "MomentStatistics": lambda: cs.layer_statistics(problem())["0"].errors,
    "LayerApproximation": lambda: st.layer_approximations(problem(), generator=g())["0"],
    "LogitClusters": lambda: st.logit_clusters(problem(), "2"),
    "Clusters": lambda: st.logit_clusters(problem(), "2").weight,
    "Embedding": lambda: st.Embedding(torch.rand(3, 3, 2), torch.rand(3, 2), torch.rand(3, 2)),
    "Comparison": compared,
    "DegeneracyHistory": lambda: cs.flatness.rank_history(
        [(0, problem()), (1, problem(1))], steps=6, generator=g()
    ),
    "SubsamplingStudy": lambda: cs.flatness.subsampling_study(
        problem(), [10, 20], repeats=2, probes=4, generator=g()
    ),
    "Certificate": certificate,
    "TailDensity": lambda: sp.tail_density(cs.exact_spectrum(H())),
    "LogitCenters": lambda: st.logit_centers(problem(), "2"),
    "CenterMatch": lambda: st.logit_centers(problem(), "2").weight,
    "MeanCosines": lambda: st.mean_cosines(problem()),
    "Sweep": lambda: cs.training.sweep(
        model(), data(), cs.Recipe(seed=0, epochs=2), rates=(0.1, 0.01), test=data()
    ),
    "Trained": lambda: cs.train(model(), data(), cs.Recipe(seed=0, epochs=2), test=data()),
}
"""What is drawn, and how to get one."""

NUMBERS = {
    *("BlockTridiagonal", "End", "Estimate", "Normalization", "Progress", "RankDegeneracy"),
    *("AutocorrelationTable", "CanonicalModel", "ClassStructure", "ExpectedSpectrum"),
    *("FullOutputHessian", "Gap", "Group", "KroneckerFactors", "Misalignment", "RandomNetwork"),
    *("RankOneCondition", "Spread", "WeightStatistics", "CurvatureMeasures", "DeepLinear"),
    *("DegeneracyPoint", "MinibatchMetric", "PacMetric", "RankCorrelation", "Rescaled", "Scores"),
    *("SharpnessReport", "Subsample", "WeightNorms", "Confidence", "Method", "PriorGrid"),
    *("Verification", "Epoch", "Fit", "Recipe", "CurvatureBound", "PowerLaw", "ShiftEstimate"),
    "SpectrumRatios",
}
"""Single numbers, settings, and operators: there is nothing to be seen in them."""


def _last() -> Any:
    return cs.kronecker_factors(problem(), layers="2", bias=False)["2"]


def public() -> dict[str, type]:
    """The dataclasses of the public namespaces."""
    found = {}
    for namespace in NAMESPACES:
        for name in namespace.__all__:
            kind = getattr(namespace, name)
            if isinstance(kind, type) and is_dataclass(kind):
                found[name] = kind
    return found


def test_nothing_is_forgotten() -> None:
    assert set(public()) == set(DRAWN) | NUMBERS
    assert not set(DRAWN) & NUMBERS


@pytest.mark.parametrize("name", DRAWN)
def test_it_is_drawn(name: str) -> None:
    result = DRAWN[name]()
    assert type(result) is public()[name]
    panels = results.picture(result).panels
    for panel in panels:
        assert panel.image is not None or any(len(curve.x) for curve in panel.curves)
        assert panel.xlabel
        assert panel.ylabel
    figure = cs.plot(result)
    drawn = [axes for axes in figure.axes if axes.axison and (axes.has_data() or axes.images)]
    assert len(drawn) >= len(panels)


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_it_is_refused_in_one_sentence(name: str) -> None:
    result = object.__new__(public()[name])
    with pytest.raises(CurvescopeError, match=f"there is no picture of an? {name}; there is one"):
        cs.plot(result)


def test_the_stages_of_an_analysis_are_drawn() -> None:
    """See ``tests/reports/test_figures.py`` for what they show."""
    kinds = {kind.__name__ for kind in results._panels.registry}
    assert {"Spectrum", "ClassFindings", "ClassLayerFindings"} <= kinds


def test_a_training_without_epochs_is_refused() -> None:
    trained = cs.train(model(), data(), cs.Recipe(seed=0, epochs=2))
    assert [panel.title for panel in results.picture(trained).panels] == ["Loss", "Accuracy"]
    with pytest.raises(CurvescopeError, match="nothing to draw"):
        cs.plot(replace(trained, history=()))
