"""Log-determinants: calibrated over probes, bracketed over steps."""

from __future__ import annotations

import math

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.operators.simple import Dense, Diagonal
from curvescope.spectra import logdet
from tests.spectra.matrices import F64, Counting, rotated, seeded
from tests.tolerances import STANDARD_ERRORS

SPECTRUM = torch.cat([torch.zeros(50), torch.logspace(-4, 1, 100)]).double()
MATRIX = Dense(rotated(SPECTRUM).dense(), psd=True)


def truth(damping: float) -> float:
    return float(torch.log(SPECTRUM + damping).sum())


def test_within_the_stated_error_and_calibrated() -> None:
    A, damping = Counting(MATRIX), 1e-2
    z = []
    for seed in range(200):
        estimate = logdet(A, damping=damping, steps=25, probes=10, generator=seeded(seed))
        z.append((estimate.value - truth(damping)) / math.hypot(estimate.stderr, estimate.bias))
        assert estimate.products == A.columns
        A.columns = 0
    scores = torch.tensor(z)
    assert abs(float(scores.mean())) < 0.35
    assert 0.7 < float(scores.std()) < 1.4
    assert int((scores.abs() > STANDARD_ERRORS).sum()) <= 3  # t with 9 degrees of freedom


@pytest.mark.parametrize("steps", [2, 5, 10, 20])
def test_the_bracket_holds_for_every_number_of_steps(steps: int) -> None:
    """The value at full depth for the same probes lies within ``bias`` of the one at few steps."""
    deep = logdet(MATRIX, damping=1e-2, steps=150, probes=4, generator=seeded())
    few = logdet(MATRIX, damping=1e-2, steps=steps, probes=4, generator=seeded())
    assert abs(few.value - deep.value) <= few.bias + 1e-6
    assert deep.bias < 1e-5 < few.bias
    if steps == 20:
        assert few.bias < 0.1 * abs(few.value)


def test_no_lower_bound_without_damping() -> None:
    A = Dense(rotated(torch.linspace(0.5, 2, 80, dtype=F64)).dense(), psd=True)
    estimate = logdet(A, damping=0.0, steps=10, generator=seeded())
    assert estimate.bias == math.inf
    exact = float(torch.log(torch.linspace(0.5, 2, 80, dtype=F64)).sum())
    assert abs(estimate.value - exact) <= STANDARD_ERRORS * estimate.stderr


def test_an_indefinite_operator_is_refused_and_damping_helps() -> None:
    A = rotated(torch.linspace(-0.5, 2, 50, dtype=F64))
    with pytest.raises(CurvescopeError, match=r"A \+ damping·I must be positive definite"):
        logdet(A, damping=0.1, generator=seeded())
    exact = float(torch.log(torch.linspace(-0.5, 2, 50, dtype=F64) + 0.8).sum())
    estimate = logdet(A, damping=0.8, steps=50, probes=30, generator=seeded())
    assert abs(estimate.value - exact) <= STANDARD_ERRORS * estimate.stderr
    with pytest.raises(CurvescopeError, match=r"damping must be at least 0\.0"):
        logdet(Diagonal(torch.ones(3)), damping=-1.0, generator=seeded())
