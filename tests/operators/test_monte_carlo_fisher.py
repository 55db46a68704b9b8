"""The Monte-Carlo Fisher: a fixed psd matrix for one generator, G in expectation."""

from __future__ import annotations

import pytest
import torch

import curvescope as cs
from tests.cases import BY_NAME, dense
from tests.conformance import assert_relative, check_operator, random_block
from tests.tolerances import EXACT, REORDERED, STANDARD_ERRORS

NAMES = [
    "cross_entropy",
    "cross_entropy-ignored",
    "logistic",
    "logistic-column",
    "mse",
    "mse-positions",
    "batch-norm-train",
]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rank(matrix: torch.Tensor) -> int:
    values = torch.linalg.eigvalsh(matrix.double())
    return int((values > 1e-10 * values[-1]).sum())


@pytest.mark.parametrize(
    "name", [*NAMES, "tied-embedding", "sdpa", "conv-stride-padding", "module-cross_entropy"]
)
def test_conformance(name: str) -> None:
    """One operator, one matrix: all routes to a product agree with its own dense matrix."""
    problem = BY_NAME[name].problem()
    op = cs.MonteCarloFisher(problem, samples=2, generator=generator(0))
    assert op.symmetric
    assert op.psd
    check_operator(op, op.dense(), rtol=EXACT[torch.float64])


@pytest.mark.parametrize("name", NAMES)
def test_one_generator_one_matrix(name: str) -> None:
    """The draws depend on the generator, not on keeping, chunking or the global generator."""
    problem = BY_NAME[name].problem()
    V = random_block(problem.params.size, 4, torch.float64)
    expected = cs.MonteCarloFisher(problem, samples=2, generator=generator(3)) @ V
    for options in ({"keep": True}, {"keep": False}, {"columns": 1}):
        torch.manual_seed(99)
        product = cs.MonteCarloFisher(problem, samples=2, generator=generator(3), **options) @ V
        assert_relative(product, expected, rtol=REORDERED[torch.float64], what=f"{options}")
    other = cs.MonteCarloFisher(problem, samples=2, generator=generator(4)) @ V
    assert float((other - expected).norm() / expected.norm()) > 1e-3


def test_float32_draws_the_same_labels() -> None:
    V = random_block(BY_NAME["cross_entropy"].problem().params.size, 3, torch.float64)
    double = (
        cs.MonteCarloFisher(BY_NAME["cross_entropy"].problem(), samples=2, generator=generator(3))
        @ V
    )
    single = (
        cs.MonteCarloFisher(
            BY_NAME["cross_entropy"].problem(torch.float32), samples=2, generator=generator(3)
        )
        @ V.float()
    )
    assert_relative(single, double, rtol=EXACT[torch.float32], what="float32")


@pytest.mark.parametrize("name", NAMES)
def test_expectation_is_exact_in_the_reference(name: str) -> None:
    """Summing over all labels (integrating over Gaussian ones) gives the Gauss–Newton matrix."""
    assert_relative(
        dense(name, "expected_fisher"), dense(name, "gauss_newton"), rtol=1e-12, what="E[F]"
    )


@pytest.mark.parametrize("name", NAMES)
def test_mean_over_generators(name: str) -> None:
    """Six quadratic forms over 40 seeds lie within four standard errors of the truth."""
    problem, truth = BY_NAME[name].problem(), dense(name, "expected_fisher")
    U = torch.cat(
        [
            random_block(truth.shape[0], 5, torch.float64, seed=20),
            torch.linalg.eigh(truth)[1][:, -1:],
        ],
        1,
    )
    draws = []
    for seed in range(40):
        FU = cs.MonteCarloFisher(problem, samples=2, generator=generator(seed), keep=False) @ U
        draws.append((U * FU).sum(0))
    draws = torch.stack(draws)
    mean, stderr = draws.mean(0), draws.std(0) / len(draws) ** 0.5
    expected = (U * (truth @ U)).sum(0)
    z = (mean - expected) / stderr
    assert float(z.abs().max()) <= STANDARD_ERRORS, f"z-scores {z.tolist()}"
    assert float(stderr[-1] / expected[-1]) < 0.2


def test_samples_set_the_rank() -> None:
    """``N`` terms with one draw each span at most ``N`` directions, with two draws more."""
    problem = BY_NAME["mse"].problem()
    ranks = [
        rank(cs.MonteCarloFisher(problem, samples=s, generator=generator(0)).dense())
        for s in (1, 2)
    ]
    assert ranks[0] <= 12 < ranks[1] <= 24


def test_more_samples_come_closer() -> None:
    """The error falls like ``samples^(−1/2)``: 400 samples have less than a fifth of it."""
    problem, truth = BY_NAME["cross_entropy"].problem(), dense("cross_entropy", "gauss_newton")
    errors = [
        float(
            (cs.MonteCarloFisher(problem, samples=s, generator=generator(1)).dense() - truth).norm()
            / truth.norm()
        )
        for s in (1, 400)
    ]
    assert errors[1] < errors[0] / 5


def test_blocks() -> None:
    problem = BY_NAME["cross_entropy"].problem()
    op = cs.MonteCarloFisher(problem, samples=2, generator=generator(0))
    whole, part = op.dense(), op.block("fc2").dense()
    assert_relative(
        part, whole[25:, 25:], rtol=EXACT[torch.float64], what="block of the same draws"
    )


def test_a_generator_is_needed() -> None:
    problem = BY_NAME["cross_entropy"].problem()
    with pytest.raises(cs.CurvescopeError, match=r"generator must be a torch\.Generator"):
        cs.MonteCarloFisher(problem, samples=1, generator=None)
    with pytest.raises(cs.CurvescopeError, match=r"samples.*0"):
        cs.MonteCarloFisher(problem, samples=0, generator=generator(0))


def test_a_callable_has_no_label_distribution() -> None:
    """Nothing can be drawn for a loss that is not the negative logarithm of a known density."""
    problem = BY_NAME["callable-huber"].problem()
    with pytest.raises(cs.CurvescopeError, match=r"(?i)MonteCarloFisher.*(cross_entropy|loss)"):
        cs.MonteCarloFisher(problem, samples=1, generator=generator(0)).dense()
