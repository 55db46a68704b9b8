"""The arithmetic of the bound: known values, rounding, coverage by simulation."""

import math

import mpmath
import pytest
import torch

from curvescope.certificates.bound import (
    Confidence,
    PriorGrid,
    complexity,
    draws_for_slack,
    monte_carlo_bound,
)
from curvescope.certificates.divergence import kl_inverse
from curvescope.errors import CurvescopeError

mpmath.mp.dps = 50


@pytest.mark.parametrize(
    ("error", "kl", "rho", "printed", "tolerance"),
    [  # DH table 9: SNN loss, KL divergence, ½ log λ, bound
        (0.02347, 3766.1, -1.2913, 0.1198, 5e-5),  # T-600 ITER
        (0.03373, 4612.6, -1.3313, 0.1540, 5e-5),  # T-600 BASE
        (0.03417, 3980.6, -1.6063, 0.1432, 5e-5),  # T-600 APPR
        (0.02473, 5086.5, -1.7963, 0.1456, 5e-5),  # T-600² ITER
        (0.5070, 1144.8, -1.8263, 0.6046, 5e-5),  # R-600 BASE
        (0.02947, 8697.9, -1.3063, 0.2132, 5e-5),  # T-600₁₀ ITER
        # λ at its cap: the paper's j = b log(c/λ) is below 1 there, which the grid does not have.
        (0.02229, 9821.0, -1.1513, 0.2145, 4e-4),  # T-200²₁₀ ITER
    ],
)
def test_the_paper_s_rows_follow_from_their_own_terms(error, kl, rho, printed, tolerance) -> None:
    """The published bounds, recomputed from the published error bound, KL and prior variance."""
    grid = PriorGrid()
    penalty = min(grid.penalty(j) for j in grid.around(math.exp(2 * rho)))
    terms = complexity(kl, [penalty], samples=60_000, delta=0.025, form="seeger")
    assert kl_inverse(error, terms.value) == pytest.approx(printed, abs=tolerance)


def test_both_forms_and_their_rounding() -> None:
    n, delta = 60_000, 0.025
    for form, exact_confidence, divisor in (
        ("maurer", mpmath.log(2 * mpmath.sqrt(n) / mpmath.mpf(delta)), n),
        ("seeger", mpmath.log(n / mpmath.mpf(delta)), n - 1),
    ):
        terms = complexity(3766.1, [12.5, 3.25], samples=n, delta=delta, form=form)
        exact = (mpmath.mpf(3766.1) + mpmath.mpf(15.75) + exact_confidence) / divisor
        assert exact <= mpmath.mpf(terms.value) <= exact * (1 + mpmath.mpf(1e-14))
        assert terms.divisor == divisor
    assert (
        complexity(100.0, [], samples=n, delta=delta).value
        < complexity(100.0, [], samples=n, delta=delta, form="seeger").value
    )


def test_the_penalties_spend_exactly_delta() -> None:
    grid = PriorGrid()
    spent = sum(math.exp(-grid.penalty(j)) for j in range(1, 200_001))
    assert spent == pytest.approx(1 - 6 / math.pi**2 / 200_000, rel=1e-6)
    assert spent <= 1


def test_rounding_takes_the_better_neighbor() -> None:
    grid = PriorGrid()

    def kl(variance: float) -> float:  # least at the variance 0.0333
        return 4000 * (math.log(variance / 0.0333)) ** 2

    point = grid.best(0.0333, kl)
    candidates = [kl(grid.variance(j)) + grid.penalty(j) for j in range(1, 400)]
    assert point.kl + point.penalty == pytest.approx(min(candidates))
    assert point.variance == grid.variance(point.j)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.97])
def test_monte_carlo_coverage(p: float, generator) -> None:
    """20,000 experiments of 60 draws: the bound is below the truth in at most δ' of them."""
    delta, draws, experiments = 0.05, 60, 20_000
    hits = torch.rand(experiments, draws, generator=generator).lt(p).sum(1)
    bounds = torch.tensor([monte_carlo_bound(k / draws, draws, delta=delta) for k in range(61)])
    missed = (bounds[hits] < p).double().mean().item()
    assert missed <= delta + 4 * math.sqrt(delta * (1 - delta) / experiments)
    assert bounds[round(p * draws)] >= p - 1e-3  # at the expected count it does cover


def test_monte_carlo_coverage_with_unequal_expectations(generator) -> None:
    """One draw for each example, whose errors have different probabilities: still covered."""
    delta, experiments = 0.05, 20_000
    p = torch.cat([torch.full((40,), 0.01), torch.linspace(0.05, 0.95, 20)])
    hits = torch.rand(experiments, 60, generator=generator).lt(p).sum(1)
    bounds = torch.tensor([monte_carlo_bound(k / 60, 60, delta=delta) for k in range(61)])
    assert (bounds[hits] < p.mean()).double().mean().item() <= delta


@pytest.mark.parametrize("error", [0.0, 0.01, 0.2, 0.5])
@pytest.mark.parametrize("slack", [0.1, 0.003])
def test_draws_for_slack_is_the_smallest_number(error: float, slack: float) -> None:
    m = draws_for_slack(error, slack, delta=0.01)
    assert monte_carlo_bound(error, m, delta=0.01) <= error + slack
    assert m == 1 or monte_carlo_bound(error, m - 1, delta=0.01) > error + slack


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Confidence(sample=0.0), "sample must lie between 0 and 1"),
        (lambda: Confidence(sample=0.3, draws=0.3), "at most 0.5"),
        (lambda: PriorGrid(precision=0), "precision must be positive"),
        (lambda: PriorGrid().variance(0), "integer of at least 1"),
        (lambda: PriorGrid().around(0.0), "variance must be positive"),
        (lambda: complexity(1.0, [], samples=7, delta=0.1), "at least 8"),
        (lambda: complexity(-1.0, [], samples=9, delta=0.1), "kl must be at least 0"),
        (lambda: complexity(1.0, [], samples=9, delta=1.0), "delta must lie"),
        (lambda: complexity(1.0, [], samples=9, delta=0.1, form="x"), "form must be one of"),
        (lambda: monte_carlo_bound(0.1, 0, delta=0.1), "draws must be an integer"),
        (lambda: monte_carlo_bound(0.1, 5, delta=0.0), "delta must lie"),
        (lambda: draws_for_slack(0.1, 0.0, delta=0.1), "slack must be positive"),
    ],
)
def test_misuse_is_one_sentence(call, match: str) -> None:
    with pytest.raises(CurvescopeError, match=match):
        call()
