"""Agreement within errors, and numbers as text."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from curvescope._numbers import plus_minus
from curvescope.experiments.checks import Number, agree, reach
from curvescope.experiments.stages.spectrum_checks import power_sum
from curvescope.operators.simple import Diagonal
from curvescope.spectra import eigenpairs, spectral_measure


@pytest.mark.parametrize("degrees", [1, 3, 7, 9, 15, 31, 63])
def test_the_reach_is_students_quantile(degrees: int) -> None:
    tail = stats.norm.sf(4.0)
    found = reach(Number(0.0), Number(0.0, 1.0, degrees + 1))
    assert found == pytest.approx(stats.t.isf(tail, degrees), abs=0.01)


def test_the_reach_of_two_estimates_lies_between_theirs() -> None:
    few, many = Number(0.0, 1.0, 8), Number(0.0, 1.0, 64)
    both = reach(few, many)
    assert reach(Number(0.0), many) < both < reach(Number(0.0), few)


def test_sound_estimates_agree_and_wrong_ones_do_not() -> None:
    """Means of 8 and of 32 normal numbers, 2000 times: the same truth, and one 9 errors away."""
    g = torch.Generator().manual_seed(0)
    failures = missed = 0
    for _ in range(2000):
        x, y = torch.randn(8, generator=g), torch.randn(32, generator=g)
        a = Number(float(x.mean()), float(x.std() / 8**0.5), 8)
        b = Number(float(y.mean()), float(y.std() / 32**0.5), 32)
        failures += not agree("x", {"a": a, "b": b}).passed
        far = Number(b.value + 20.0, b.stderr, 32)
        missed += agree("x", {"a": a, "b": far}).passed
    assert failures <= 2
    assert missed == 0


def test_exact_numbers_agree_up_to_rounding() -> None:
    assert agree("x", {"a": Number(1.0), "b": Number(1.00001)}).passed
    assert not agree("x", {"a": Number(1.0), "b": Number(1.001)}).passed
    assert not agree("x", {"a": Number(0.0), "b": Number(1e-9)}).passed
    assert agree("x", {"a": Number(0.0), "b": Number(1e-9)}, scale=1.0).passed


@pytest.mark.parametrize(
    ("value", "stderr", "text"),
    [
        (12.34567, 0.0123, "12.346 ± 0.012"),
        (1234.5, 56.0, "1234 ± 56"),
        (-0.5, 1e-4, "−0.50000 ± 0.00010"),
        (2.0, 0.0, "2"),
        (2.0, float("inf"), "2 ± inf"),
        (-3.21e9, 4.5e7, "(−3.210 ± 0.045)·10⁹"),
        (0.0, 2e-12, "(0.0 ± 2.0)·10⁻¹²"),
        (-1.25e-16, 0.0, "−1.25·10⁻¹⁶"),
        (0.0, 0.0, "0"),
    ],
)
def test_value_and_error_share_their_last_digit(value: float, stderr: float, text: str) -> None:
    assert plus_minus(value, stderr) == text


def test_few_probes_cannot_make_the_error_of_a_power_sum_too_small() -> None:
    """Over many draws the true spread is known; no reported error is far below it."""
    A = Diagonal(torch.cat([torch.tensor([30.0, 20.0]), torch.linspace(-2, 1, 98)]).double())
    pairs = eigenpairs(A, 2, which="magnitude", generator=torch.Generator().manual_seed(0))
    for k in (1, 2):
        sums = [
            power_sum(
                spectral_measure(
                    A, steps=12, probes=4, deflate=pairs,
                    generator=torch.Generator().manual_seed(seed),
                ),
                k,
            )
            for seed in range(60)
        ]  # fmt: skip
        values = torch.tensor([number.value for number in sums])
        spread = float(values.std())
        true = float((A.dense().diagonal() ** k).sum())
        assert float(values.mean()) == pytest.approx(true, abs=4 * spread / 60**0.5)
        errors = torch.tensor([number.stderr for number in sums])
        assert float(errors.min()) > 0.7 * spread
        assert float((values - true).abs().div(errors).max()) < 4
