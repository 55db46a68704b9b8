"""Ratios of the parts of a spectrum: by place, and as the closed form of the canonical model."""

from __future__ import annotations

import math

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.spectra import ExactSpectrum
from curvescope.structure import (
    CanonicalModel,
    expected_fim,
    expected_spectrum,
    misclassification_study,
    sampled_fim,
    spectrum_ratios,
)

NAMES = ("outliers to mini-bulk", "outliers to bulk", "mini-bulk to bulk")


def test_the_closed_form_of_the_canonical_model() -> None:
    """Theorem 8.1 gives the three means, and the zeros are no bulk."""
    model = CanonicalModel(features=7, classes=4, signal=3.0)
    theory = expected_spectrum(model, 0.2)
    values = torch.linalg.eigvalsh(expected_fim(model, 0.2))
    found = spectrum_ratios(ExactSpectrum(values, 0, "primal", 0), 4)
    assert found.outliers == pytest.approx(float(theory.values[0]), rel=1e-10)
    assert found.mini_bulk == pytest.approx(float(theory.values[1]), rel=1e-10)
    assert found.bulk == pytest.approx(float(theory.values[2]), rel=1e-10)
    for name, (a, b) in zip(NAMES, [(0, 1), (0, 2), (1, 2)], strict=True):
        assert found.ratio(name) == pytest.approx(float(theory.values[a] / theory.values[b]))


def test_the_same_as_the_study_of_misclassification() -> None:
    for name in NAMES:
        study = misclassification_study(
            6, 3, signals=torch.tensor([2.0]), per_class=300, ratio=name,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        model = CanonicalModel(6, 3, 2.0)
        X, _ = model.sample(300, generator=torch.Generator().manual_seed(0))
        P = model.bayes_probabilities(X)
        found = spectrum_ratios(torch.linalg.eigvalsh(sampled_fim(X, P)), 3)
        assert found.ratio(name) == pytest.approx(float(study.measured[0]), rel=1e-9)


def test_parts_that_are_empty() -> None:
    two = spectrum_ratios(torch.tensor([5.0, 3.0, 1.0, 1.0]), 2)  # two classes: no mini-bulk
    assert (two.outliers, two.bulk) == (4.0, 1.0)
    assert math.isnan(two.mini_bulk)
    assert math.isnan(two.ratio("outliers to mini-bulk"))
    few = spectrum_ratios(torch.tensor([5.0, 1e-14]), 3)
    assert few.outliers == 5.0
    assert math.isnan(few.bulk)


def test_what_is_refused() -> None:
    with pytest.raises(CurvescopeError, match="needs finite eigenvalues"):
        spectrum_ratios(torch.tensor([1.0, float("nan")]), 2)
    with pytest.raises(CurvescopeError, match="classes must be"):
        spectrum_ratios(torch.ones(3), 1)
    with pytest.raises(CurvescopeError, match="name"):
        spectrum_ratios(torch.ones(3), 2).ratio("bulk to outliers")
