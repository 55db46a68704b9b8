"""Initial weights: the stated distributions, from the given generator and from nowhere else."""

from __future__ import annotations

from math import erf, exp, pi, sqrt

import pytest
import torch
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.networks import initialize, network


def test_pytorch_draws_what_torch_itself_draws() -> None:
    torch.manual_seed(5)
    reference = nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.Conv2d(6, 16, 5),
        nn.Linear(400, 120),
        nn.Linear(120, 84),
        nn.Linear(84, 10),
    )
    model = network("LeNet5", (3, 32, 32), 10, generator=torch.Generator().manual_seed(5))
    for ours, torchs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, torchs)


@pytest.mark.parametrize("scheme", ["pytorch", "xavier", "dziugaite-roy"])
def test_only_the_generator_decides(scheme: str) -> None:
    before = torch.random.get_rng_state()
    draws = [
        network(
            "LeNet5-BN", (3, 32, 32), 10, init=scheme, generator=torch.Generator().manual_seed(s)
        )
        for s in (0, 0, 1)
    ]
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in draws]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_xavier_is_uniform_and_its_biases_are_zero() -> None:
    model = network("F-300", 500, 10, init="xavier", generator=torch.Generator().manual_seed(0))
    weight, bound = model.get_submodule("fc1").weight, sqrt(6 / 800)
    assert weight.abs().max() <= bound
    # 150,000 draws: the standard error of the variance of a uniform variable is √(4/5)·σ²/√n.
    variance = weight.var().item()
    assert abs(variance - bound**2 / 3) <= 4 * sqrt(4 / 5) * bound**2 / 3 / sqrt(weight.numel())
    assert all(not p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_xavier_of_a_convolution_counts_the_kernel() -> None:
    conv = nn.Conv2d(8, 16, 3)
    initialize(conv, "xavier", generator=torch.Generator().manual_seed(0))
    bound = sqrt(6 / (8 * 9 + 16 * 9))
    assert 0.99 * bound < conv.weight.abs().max() <= bound


def test_dziugaite_roy_is_a_truncated_normal() -> None:
    model = network("T-600^2", (1, 28, 28), 1, generator=torch.Generator().manual_seed(0))
    assert model.spec.init == "dziugaite-roy"
    weight = model.get_submodule("fc1").weight.double()
    assert weight.abs().max() <= 0.08
    assert weight.abs().max() > 0.079
    # The variance of a standard normal cut at ±2: 1 − 4 φ(2) / (2 Φ(2) − 1).
    variance = 0.04**2 * (1 - 4 * exp(-2) / sqrt(2 * pi) / erf(2 / sqrt(2)))
    assert abs(weight.var().item() / variance - 1) <= 4 * sqrt(2 / weight.numel())
    assert abs(weight.mean().item()) <= 4 * sqrt(variance / weight.numel())
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    torch.testing.assert_close(biases[0], torch.full((600,), 0.1))
    assert all(not bias.any() for bias in biases[1:])


def test_t_and_f_differ_in_their_initialization_alone() -> None:
    shapes = [
        {name: p.shape for name, p in network(name, 784, 1).named_parameters()}
        for name in ("F-600", "T-600", "R-600")
    ]
    assert shapes[0] == shapes[1] == shapes[2]
    chosen = network("T-600", 784, 1, init="xavier")
    assert chosen.spec.init == "xavier"


def test_batch_norms_start_afresh() -> None:
    model = network("VGG11-W4-BN", (3, 32, 32), 10)
    norm = model.get_submodule("bn-conv1")
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.fill_(7)
    initialize(model, "pytorch", generator=torch.Generator().manual_seed(0))
    assert [norm.weight.unique().item(), norm.bias.unique().item()] == [1, 0]
    assert [norm.running_mean.unique().item(), norm.running_var.unique().item()] == [0, 1]


def test_mistakes_are_named() -> None:
    with pytest.raises(CurvescopeError, match="scheme must be one of 'pytorch', 'xavier'"):
        initialize(nn.Linear(2, 2), "he", generator=torch.Generator())
    with pytest.raises(CurvescopeError, match="generator must be"):
        initialize(nn.Linear(2, 2), "xavier", generator=None)
    with pytest.raises(CurvescopeError, match="init must be one of"):
        network("F-2", 2, 2, init="he")
