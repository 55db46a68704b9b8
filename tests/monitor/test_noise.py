"""The noise scale beside brute force over the gradients of single samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.monitor.noise import noise_scale
from curvescope.monitor.probe import gradients, mean, pieces


def population() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, a thousand samples, and the gradient of each of them by itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    X = torch.randn(1000, 5).double()
    y = X[:, :3].argmax(1)
    parameters = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        output = torch.func.functional_call(model, weights, x[None])
        return nn.functional.cross_entropy(output, t[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, X, y)
    return model, X, y, torch.cat([g.flatten(1) for g in each.values()], 1).detach()


def test_pieces_average_to_what_single_samples_say() -> None:
    """With one sample in a piece both unknowns are sums over single samples."""
    model, X, y, each = population()
    problem = cs.Problem(model, X[:64], y[:64])
    parts = pieces([(X[:64], y[:64])], 64, torch.Generator().manual_seed(0))
    rows = [part.slope for part in gradients(problem, parts) if part.slope is not None]
    found = noise_scale(torch.stack(rows), 1)
    samples = each[:64]
    variance = float(samples.var(0).sum())
    square = float(samples.mean(0).square().sum()) - variance / 64
    assert found.variance == pytest.approx(variance, rel=1e-9)
    assert found.square == pytest.approx(square, rel=1e-9)
    assert found.scale == pytest.approx(variance / square, rel=1e-9)
    whole = list(gradients(problem, [(X[:64], y[:64])]))
    loss, slope = mean(whole)
    assert loss == pytest.approx(float(problem.value()))
    assert slope is not None
    assert torch.allclose(slope, problem.gradient())


def test_errors_are_calibrated() -> None:
    """Probes drawn from a population: the errors are those that there are."""
    _, _, _, each = population()
    G = each.mean(0)
    variance, square = float((each - G).square().sum(1).mean()), float(G.square().sum())
    scores, covered = [], 0
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        drawn = each[torch.randint(len(each), (16, 32), generator=g)].mean(1)
        found = noise_scale(drawn, 32)
        scores.append(
            [
                (found.variance - variance) / found.variance_error,
                (found.square - square) / found.square_error,
                (found.scale - variance / square) / found.scale_error,
            ]
        )
        covered += found.low <= variance / square <= found.high
    z = torch.tensor(scores)
    assert bool((z.mean(0).abs() < 0.35).all())
    assert bool(((z.std(0) > 0.8) & (z.std(0) < 1.3)).all())
    assert 0.91 * 200 <= covered <= 200


def test_a_gradient_that_is_all_noise_is_open_above() -> None:
    rows = torch.randn(16, 400, generator=torch.Generator().manual_seed(1))
    found = noise_scale(rows, 4)
    assert not found.resolved
    assert found.low > 4 * 16 / 10


def test_too_few_samples_are_refused() -> None:
    model = nn.Linear(2, 2)
    X, y = torch.zeros(5, 2), torch.zeros(5, dtype=torch.long)
    g = torch.Generator()
    with pytest.raises(cs.CurvescopeError, match="needs at least 16 samples in the probe, got 5"):
        cs.Monitor(model, (X, y), track=("noise",), every=1, generator=g)
