"""Small networks and data for the tests of certificates."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from curvescope.certificates.bases import Bases
from curvescope.certificates.blocks import Layout


def mlp(*sizes: int, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def convnet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ).double()


def blobs(samples: int, generator: torch.Generator, classes: int = 2) -> tuple[Tensor, Tensor]:
    """Overlapping Gaussian classes in five dimensions."""
    y = torch.arange(samples) % classes
    centers = 0.8 * torch.randn(classes, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    return centers[y] + noise, y


def random_bases(layout: Layout, generator: torch.Generator) -> Bases:
    def orthogonal(n: int) -> Tensor:
        matrix = torch.randn(n, n, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(matrix)[0]

    pairs = tuple(
        (orthogonal(block.rows), orthogonal(block.columns)) if block.layer else None
        for block in layout.blocks
    )
    return Bases(layout, pairs)


def normal(size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64)


def train(model: nn.Module, data: tuple[Tensor, Tensor], steps: int = 200) -> nn.Module:
    """A few steps of full-batch Adam."""
    X, y = data
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        z = model(X)
        if z.shape[1] == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.to(z.dtype))
        else:
            loss = nn.functional.cross_entropy(z, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}
