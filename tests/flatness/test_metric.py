"""PP's metric, its mini-batch version and the sub-sampling study against dense matrices."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import curvescope as cs
from curvescope.flatness.metric import pac_metric
from curvescope.flatness.minibatch import minibatch_metric
from curvescope.flatness.subsampling import subsampling_study
from tests.cases import BY_NAME
from tests.tolerances import STANDARD_ERRORS

EXACT = 1e-8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(hidden: int = 6) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3)).double()


def data(samples: int) -> tuple[Tensor, Tensor]:
    X = torch.randn(samples, 4, generator=generator(1), dtype=torch.float64)
    return X, torch.randint(3, (samples,), generator=generator(2))


# The metric -------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
@pytest.mark.parametrize("name", ["cross_entropy", "logistic", "batch-norm-train"])
def test_every_term_against_dense_matrices(name: str, matrix: str) -> None:
    case = BY_NAME[name]
    reference = case.reference()
    G = reference.gauss_newton()
    A = reference.hessian() if matrix == "hessian" else G
    n, damping, variance = len(G), 0.05, 0.3
    found = pac_metric(
        case.problem(), generator=generator(), matrix=matrix, damping=damping, prior_variance=0.3
    )
    w = torch.cat([p.detach().reshape(-1) for p in reference.parameters])
    samples = len(reference.rows()[0])
    damped = G + damping * torch.eye(n, dtype=torch.float64)
    trace, norm = float(A.trace()), float(w @ w)
    likelihood = -samples * reference.value().item()
    logdet = float(torch.logdet(damped))
    assert found.samples == samples
    assert found.equation_6.value == pytest.approx(
        (trace + norm) / (2 * variance) + logdet / 2, rel=EXACT
    )
    assert found.equation_7.value == pytest.approx(trace + norm / 2, rel=EXACT)
    assert found.equation_9.value == pytest.approx(
        likelihood - 0.5 * logdet * (1 + 1 / samples) - (trace + norm) / (2 * variance * samples),
        rel=EXACT,
    )
    q = torch.distributions.MultivariateNormal(w, precision_matrix=damped)
    p = torch.distributions.MultivariateNormal(
        torch.zeros_like(w), variance * torch.eye(n, dtype=torch.float64)
    )
    kl = float(torch.distributions.kl_divergence(q, p))
    assert found.gaussian_kl.value == pytest.approx(kl, rel=EXACT)


def test_estimated_terms() -> None:
    """More parameters than are taken exactly: within the errors that the result states."""
    model, (X, y) = network(hidden=150), data(40)
    problem = cs.Problem(model, (X, y))
    found = pac_metric(problem, generator=generator(), probes=64, steps=60)
    assert problem.params.size > 1000
    H, G = cs.Hessian(problem).dense(), cs.GaussNewton(problem).dense()
    values = torch.linalg.eigvalsh(G).clamp(min=0) + 1 / 40
    assert abs(found.trace.value - float(H.trace())) <= STANDARD_ERRORS * found.trace.stderr
    for estimate, exact in (
        (found.log_determinant, values.log().sum()),
        (found.inverse_trace, (1 / values).sum()),
    ):
        error = STANDARD_ERRORS * estimate.stderr + estimate.bias
        assert abs(estimate.value - float(exact)) <= error
    assert found.damping == 1 / 40


def test_metric_refusals() -> None:
    problem = cs.Problem(network(), data(5))
    with pytest.raises(cs.CurvescopeError, match="prior_variance must be positive"):
        pac_metric(problem, generator=generator(), prior_variance=0.0)
    with pytest.raises(cs.CurvescopeError, match="matrix must be one of 'hessian', 'ggn'"):
        pac_metric(problem, generator=generator(), matrix="fisher")
    with pytest.raises(cs.CurvescopeError, match="needs a Problem"):
        pac_metric(network(), generator=generator())


# One mini-batch ---------------------------------------------------------------------------------


def test_minibatch_metric_is_unbiased_and_knows_its_error() -> None:
    """Over mini-batches of a larger set: z-scores of the right size around the whole trace."""
    model, (X, y) = network(), data(3000)
    whole = float(cs.GaussNewton(cs.Problem(model, (X, y))).dense().trace())
    scores = []
    for start in range(0, 3000, 60):
        found = minibatch_metric(
            model, X[start : start + 60], y[start : start + 60], generator=generator(start)
        )
        scores.append((found.trace.value - whole) / found.trace.stderr)
    z = torch.tensor(scores)
    assert abs(float(z.mean())) * 50**0.5 <= STANDARD_ERRORS
    assert 0.7 < float(z.std()) < 1.4
    squared = sum(float(p.detach().square().sum()) for p in model.parameters())
    assert found.value.value == pytest.approx(found.trace.value + squared / 2)
    assert found.loss == pytest.approx(F.cross_entropy(model(X[-60:]), y[-60:]).item())


def test_minibatch_metric_with_interacting_samples() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    X, y = data(12)
    exact = float(cs.GaussNewton(cs.Problem(model, [(X, y)], mode="train")).dense().trace())
    found = minibatch_metric(model.train(), X, y, generator=generator(), probes=400)
    assert abs(found.trace.value - exact) <= STANDARD_ERRORS * found.trace.stderr
    assert found.trace.stderr < 0.1 * exact
    assert model[1].num_batches_tracked == 0


def test_minibatch_metric_costs_less_than_a_step() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    X, y = torch.randn(32, 3, 12, 12, generator=generator()), torch.arange(32) % 10
    with FlopCounterMode(display=False) as step:
        F.cross_entropy(model(X), y).backward()
    costs = []
    for _ in range(2):
        with FlopCounterMode(display=False) as metric:
            minibatch_metric(model, X, y, generator=generator())
        costs.append(metric.get_total_flops() / step.get_total_flops())
    assert costs[0] < 1.0  # a new model is tried out with five samples
    assert costs[1] < 0.7
    with pytest.raises(cs.CurvescopeError, match="no parameter of the model requires grad"):
        minibatch_metric(model.requires_grad_(False), X, y, generator=generator())


# Sub-sampling -----------------------------------------------------------------------------------


def test_subsampling_formula_by_enumeration() -> None:
    """``E tr A_B²`` over all subsets of five samples, from dense matrices of single samples."""
    model, (X, y) = network(hidden=2), data(5)
    each = [cs.Hessian(cs.Problem(model, (X[i : i + 1], y[i : i + 1]))).dense() for i in range(5)]
    A = torch.stack(each).mean(0)
    noise = sum(float((a - A).square().sum()) for a in each) / 5
    for size in (1, 2, 3, 4):
        squares = [
            float(torch.stack([each[i] for i in subset]).mean(0).square().sum())
            for subset in itertools.combinations(range(5), size)
        ]
        formula = float(A.square().sum()) + (5 - size) / (4 * size) * noise
        assert sum(squares) / len(squares) == pytest.approx(formula, rel=1e-10)
    study = subsampling_study(
        cs.Problem(model, (X, y)), [1, 2, 4], generator=generator(), probes=100, repeats=60
    )
    assert study.square_sum.value == pytest.approx(float(A.square().sum()), rel=EXACT)
    assert study.trace.value == pytest.approx(float(A.trace()), rel=EXACT)
    assert study.noise == pytest.approx(noise, rel=0.2)


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_the_trace_survives_and_the_squares_do_not(matrix: str) -> None:
    model, (X, y) = network(hidden=40), data(400)
    study = subsampling_study(
        cs.Problem(model, (X, y), batch_size=150),
        [4, 16, 400],
        generator=generator(),
        matrix=matrix,
        repeats=20,
        probes=24,
    )
    for row in study.subsamples:
        error = math.hypot(row.trace.stderr, study.trace.stderr)
        assert abs(row.trace.value - study.trace.value) <= STANDARD_ERRORS * error
    small, medium, whole = (row.square_sum.value for row in study.subsamples)
    assert small > 2 * study.square_sum.value
    assert small > medium > whole * 0.9
    assert study.predicted_square_sum(4) == pytest.approx(small, rel=0.3)
    assert study.predicted_square_sum(400) == study.square_sum.value


def test_subsampling_refusals() -> None:
    problem = cs.Problem(network(), data(5))
    with pytest.raises(cs.CurvescopeError, match="at most the 5 samples of the data, got 6"):
        subsampling_study(problem, [6], generator=generator())
    train = cs.Problem(network(), [data(5)], mode="train")
    with pytest.raises(cs.CurvescopeError, match="needs mode='eval'"):
        subsampling_study(train, [2], generator=generator())
