"""A small problem that the tests of training share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from curvescope.networks import network

SAMPLES, FEATURES, CLASSES = 50, 6, 3


def data(
    samples: int = SAMPLES, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Three noisy clusters."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % CLASSES
    X = torch.randn(samples, FEATURES, generator=generator, dtype=dtype)
    return X + 2 * torch.eye(FEATURES, dtype=dtype)[y], y


def model(name: str = "F-8", *, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return network(name, FEATURES, CLASSES, generator=generator).to(dtype)


def flat(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])
