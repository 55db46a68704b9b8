"""The empirical error from draws: against a closed form, resumed, and with shared weights."""

import math

import pytest
import torch
from torch import Tensor, nn

from curvescope.certificates import evaluate as module
from curvescope.certificates.blocks import Layout
from curvescope.certificates.bound import monte_carlo_bound
from curvescope.certificates.evaluate import (
    Draws,
    evaluate,
    mean_error,
    stochastic_error,
)
from curvescope.certificates.losses import error_rate
from curvescope.certificates.posterior import Posterior
from curvescope.errors import CurvescopeError
from tests.certificates.models import blobs, convnet, mlp, normal, random_bases, state_of


def posterior_of(model: nn.Module, generator: torch.Generator, spread: float) -> Posterior:
    layout = Layout.of(model)
    mean = layout.flatten(state_of(model))
    variance = spread * normal(layout.size, generator).exp()
    return Posterior(mean, 0 * mean, variance, random_bases(layout, generator), 0 * mean)


def exact_linear_error(posterior: Posterior, X: Tensor, y: Tensor) -> float:
    """For one linear output the logit is Gaussian: the error is Φ(−margin/deviation)."""
    pair = posterior.bases.pairs[0]
    assert pair is not None
    extended = torch.cat([X, torch.ones(len(X), 1).double()], 1)
    margin = extended @ posterior.mean * (2 * y - 1)
    variance = (extended @ pair[1]).square() @ posterior.variance
    return torch.special.ndtr(-margin / variance.sqrt()).mean().item()


def test_the_draws_estimate_the_exact_error(generator) -> None:
    model = nn.Linear(5, 1).double()
    X, y = blobs(300, generator)
    posterior = posterior_of(model, generator, 0.05)
    exact = exact_linear_error(posterior, X, y)
    draws = evaluate(model, posterior, (X, y), generator=generator, slack=0.004)
    assert draws.block == 1
    assert draws.count % 300 == 0
    stderr = math.sqrt(exact * (1 - exact) / draws.count)
    assert abs(draws.mean - exact) <= 4 * stderr
    assert draws.bound(0.01) == monte_carlo_bound(draws.mean, draws.count, delta=0.01)
    assert draws.bound(0.01) <= draws.mean + 0.005


def test_the_bound_covers_the_exact_error(generator) -> None:
    """60 evaluations at δ' = 0.2: the bound misses the exact error in at most its share."""
    model = nn.Linear(5, 1).double()
    X, y = blobs(50, generator)
    posterior = posterior_of(model, generator, 0.05)
    exact = exact_linear_error(posterior, X, y)
    misses = sum(
        evaluate(model, posterior, (X, y), generator=generator, delta=0.2, slack=0.05).bound(0.2)
        < exact
        for _ in range(60)
    )
    assert misses <= 60 * 0.2 + 4 * math.sqrt(60 * 0.2 * 0.8)


def drawn_error(
    model: nn.Module, posterior: Posterior, X: Tensor, y: Tensor, generator: torch.Generator
) -> Tensor:
    """The error of one set of weights from the posterior, by torch's own functional call."""
    weights = posterior.layout.state(posterior.sample(normal(len(posterior.mean), generator)))
    return error_rate(torch.func.functional_call(model, weights, (X,)), y).mean()


def test_shared_weights_are_drawn_with_their_blocks(monkeypatch, generator) -> None:
    monkeypatch.setattr(module, "BLOCK", 8)
    model = convnet()
    X = normal(20 * 36, generator).view(20, 1, 6, 6)
    y = torch.arange(20) % 3
    posterior = posterior_of(model, generator, 0.05)
    draws = evaluate(model, posterior, (X, y), generator=generator, slack=0.1)
    assert draws.block == 8
    reference = torch.stack([drawn_error(model, posterior, X, y, generator) for _ in range(300)])
    stderr = reference.std() / math.sqrt(300) + 0.5 / math.sqrt(draws.count)
    assert abs(draws.mean - reference.mean()) <= 4 * stderr


@pytest.mark.parametrize("make", [lambda: mlp(5, 4, 1), lambda: convnet()], ids=["mlp", "convnet"])
def test_an_interrupted_evaluation_goes_on_to_the_same_result(make, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_SAVE_EVERY", 0.0)
    g = torch.Generator().manual_seed(1)
    model = make()
    convolutional = len(model) == 5
    data = blobs(30, g)
    if convolutional:
        data = normal(30 * 36, g).view(30, 1, 6, 6), torch.arange(30) % 3
    posterior = posterior_of(model, g, 0.05)
    settings = {"slack": 0.2 if convolutional else 0.05}

    def run(checkpoint=None, progress=None) -> Draws:
        g = torch.Generator().manual_seed(2)
        return evaluate(
            model, posterior, data, generator=g, checkpoint=checkpoint, progress=progress,
            **settings,
        )  # fmt: skip

    whole = run()
    file = tmp_path / "draws.safetensors"

    def stop(progress) -> None:
        if progress.done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(file, stop)
    seen = []
    assert run(file, seen.append) == whole
    assert seen[0].done > 4
    settings["slack"] = 0.15
    with pytest.raises(CurvescopeError, match="belongs to another evaluation"):
        run(file)


def test_orientation_errors(generator) -> None:
    model = nn.Linear(5, 1).double()
    X, y = blobs(300, generator)
    posterior = posterior_of(model, generator, 0.05)
    with torch.no_grad():
        assert mean_error(model, posterior, (X, y)) == error_rate(model(X), y).mean().item()
    exact = exact_linear_error(posterior, X, y)
    estimate = stochastic_error(model, posterior, (X, y), generator=generator)
    assert abs(estimate - exact) <= 4 * math.sqrt(exact * (1 - exact) / (20 * 300))


def test_slack_must_be_positive(generator) -> None:
    model = nn.Linear(5, 1).double()
    posterior = posterior_of(model, generator, 0.05)
    with pytest.raises(CurvescopeError, match="slack must be positive"):
        evaluate(model, posterior, blobs(20, generator), generator=generator, slack=0.0)
