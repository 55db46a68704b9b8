"""The canonical classification model: lemma 8.1, theorem 8.1 and what they predict."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem
from curvescope.structure.logistic import (
    RATIOS,
    CanonicalModel,
    expected_fim,
    expected_spectrum,
    misclassification_study,
    sampled_fim,
    symmetric_probabilities,
)

CASES = [
    (2, 2, 1.0, 0.3),
    (5, 2, 0.0, 0.5),
    (3, 3, 2.0, 0.1),
    (7, 4, 3.0, 0.75),
    (12, 10, 5.0, 0.02),
]


def numerically(model: CanonicalModel, alpha: float) -> torch.Tensor:
    """E G from the definition: E[x xᵀ | c] ⊗ U_c averaged over the classes, entry by entry."""
    C, D, t = model.classes, model.features, model.signal
    P = symmetric_probabilities(C, alpha)
    total = torch.zeros(D * C, D * C, dtype=torch.float64)
    for c in range(C):
        mean = torch.zeros(D, dtype=torch.float64)
        mean[c] = t
        U = torch.diag(P[c]) - torch.outer(P[c], P[c])
        total += torch.kron(torch.eye(D, dtype=torch.float64) + torch.outer(mean, mean), U) / C
    return total


@pytest.mark.parametrize(("features", "classes", "signal", "alpha"), CASES)
def test_lemma_and_theorem(features: int, classes: int, signal: float, alpha: float) -> None:
    model = CanonicalModel(features, classes, signal)
    built = numerically(model, alpha)
    torch.testing.assert_close(expected_fim(model, alpha), built, atol=1e-14, rtol=1e-14)
    spectrum = expected_spectrum(model, alpha)
    assert sum(spectrum.multiplicities) == features * classes
    torch.testing.assert_close(
        spectrum.all(), torch.linalg.eigvalsh(built).flip(0), atol=1e-12, rtol=1e-12
    )


def test_multiplicities_of_the_paper() -> None:
    # theorem 8.1: 1 … C, C … C(C−1), C(C−1) … D(C−1), D(C−1) … DC
    assert expected_spectrum(CanonicalModel(20, 6, 1.0), 0.2).multiplicities == (6, 24, 70, 20)
    assert expected_spectrum(CanonicalModel(2, 2, 1.0), 0.2).multiplicities == (2, 0, 0, 2)


def test_the_sampled_matrix_converges_to_its_expectation(generator: torch.Generator) -> None:
    model, alpha = CanonicalModel(8, 4, signal=3.0), 0.2
    X, y = model.sample(10_000, generator=generator)
    sampled = sampled_fim(X, symmetric_probabilities(4, alpha)[y])
    expected = expected_fim(model, alpha)
    assert float((sampled - expected).norm() / expected.norm()) < 0.02
    values = torch.linalg.eigvalsh(sampled).flip(0)
    start = 0
    spectrum = expected_spectrum(model, alpha)
    for value, count in zip(spectrum.values[:3], spectrum.multiplicities, strict=False):
        assert float((values[start : start + count].mean() / value - 1).abs()) < 0.02
        start += count
    assert float(values[start:].abs().max()) < 1e-12


def test_the_sampled_matrix_is_the_gauss_newton_matrix(generator: torch.Generator) -> None:
    model = CanonicalModel(5, 3, signal=1.5)
    X, y = model.sample(7, generator=generator)
    layer = nn.Linear(5, 3, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(1.5 * torch.eye(3, 5))
    G = GaussNewton(Problem(layer, (X, y))).dense()
    # the flat order is that of the rows of W, the paper's that of its columns
    order = torch.arange(15).reshape(3, 5).T.flatten()
    ours = sampled_fim(X, model.bayes_probabilities(X))
    torch.testing.assert_close(ours, G[order][:, order], atol=1e-12, rtol=1e-12)


def test_the_bayes_error(generator: torch.Generator) -> None:
    # two classes: x_1 − x_2 ~ N(t, 2)
    two = CanonicalModel(4, 2, signal=1.7)
    exact = torch.special.ndtr(torch.tensor(-1.7 / 2**0.5, dtype=torch.float64))
    assert two.bayes_error() == pytest.approx(float(exact), rel=1e-12)
    assert CanonicalModel(9, 9, 0.0).bayes_error() == pytest.approx(8 / 9, rel=1e-12)
    many = CanonicalModel(6, 6, signal=2.0)
    X, y = many.sample(20_000, generator=generator)
    wrong = (many.bayes_probabilities(X).argmax(1) != y).double()
    spread = float(wrong.std()) / len(y) ** 0.5
    assert abs(float(wrong.mean()) - many.bayes_error()) < 4 * spread
    assert 0 < CanonicalModel(2, 2, 9.0).bayes_error() < 1e-9


def test_the_ratio_predicts_misclassification(generator: torch.Generator) -> None:
    signals = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0])
    study = misclassification_study(12, 4, signals=signals, per_class=4000, generator=generator)
    assert study.monotone
    assert bool((study.predicted.diff() > 0).all())
    # the mean probability of wrong classes is what the closed-form ratio uses
    assert bool((study.alpha.diff() < 0).all())
    assert bool((study.errors.diff() < 0).all())


def test_what_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(CurvescopeError, match="4 orthogonal class means need at least as many"):
        CanonicalModel(3, 4, 1.0)
    with pytest.raises(CurvescopeError, match=r"alpha must be at most 1 − 1/C = 0.5"):
        expected_spectrum(CanonicalModel(3, 2, 1.0), 0.6)
    with pytest.raises(CurvescopeError, match="a bulk needs more features than classes"):
        misclassification_study(3, 3, signals=torch.ones(1), per_class=5, generator=generator)
    with pytest.raises(CurvescopeError, match=r"needs points \[N, D\]"):
        sampled_fim(torch.ones(3), torch.ones(3, 2))


@pytest.mark.parametrize("ratio", RATIOS)
def test_every_ratio_of_the_paper_is_measured_at_its_places(
    ratio: str, generator: torch.Generator
) -> None:
    """Against the eigenvalues of one drawn Fisher matrix, counted out by hand."""
    C, D, signal = 4, 9, torch.tensor([2.0])
    start = generator.get_state()
    study = misclassification_study(
        D, C, signals=signal, per_class=50, generator=generator, ratio=ratio
    )
    generator.set_state(start)
    model = CanonicalModel(D, C, 2.0)
    X, _ = model.sample(50, generator=generator)
    values = torch.linalg.eigvalsh(sampled_fim(X, model.bayes_probabilities(X))).flip(0)
    means = {
        "outliers": values[:4].mean(),
        "mini-bulk": values[4:12].mean(),
        "bulk": values[12:27].mean(),
    }
    above, below = ratio.split(" to ")
    assert float(study.measured) == pytest.approx(float(means[above] / means[below]), rel=1e-10)
    q, s, alpha = 2 - float(study.alpha) * C / (C - 1), 4.0, float(study.alpha)
    values_of = {"outliers": s * (1 - alpha) + q, "mini-bulk": s / C + q, "bulk": q}
    assert float(study.predicted) == pytest.approx(values_of[above] / values_of[below], rel=1e-10)
    assert study.ratio == ratio


def test_outliers_leave_the_mini_bulk_as_the_signal_grows(generator: torch.Generator) -> None:
    at = [expected_spectrum(CanonicalModel(8, 4, t), 0.2).outliers_to_minibulk for t in (1.0, 3.0)]
    assert 1 < at[0] < at[1] < 4 * 0.8  # its limit is C (1 − α)
    study = misclassification_study(
        12, 4, signals=torch.tensor([0.5, 1.5, 3.0]), per_class=2000, generator=generator,
        ratio="outliers to mini-bulk",
    )  # fmt: skip
    assert study.monotone


def test_two_classes_have_no_mini_bulk(generator: torch.Generator) -> None:
    with pytest.raises(CurvescopeError, match="a mini-bulk more than two classes"):
        misclassification_study(
            5, 2, signals=torch.ones(1), per_class=5, generator=generator,
            ratio="outliers to mini-bulk",
        )  # fmt: skip
    with pytest.raises(CurvescopeError, match="ratio must be one of"):
        misclassification_study(
            5, 2, signals=torch.ones(1), per_class=5, generator=generator, ratio="bulk"
        )
