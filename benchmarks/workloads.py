"""The models and data that every benchmark shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def mlp() -> nn.Module:
    """784-200-200-10."""
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def lenet5() -> nn.Module:
    """LeNet5 for 3×32×32 images: 62,006 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def _vgg11(widths: list[int], head: list[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, pool in zip(widths, [1, 1, 0, 1, 0, 1, 0, 1], strict=True):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), *head)


def vgg11_w64() -> nn.Module:
    """VGG11 with 64 channels everywhere."""
    return _vgg11([64] * 8, [nn.Linear(64, 10)])


def vgg11_28m() -> nn.Module:
    """VGG11 with two hidden layers of 4096: 28.1 million parameters."""
    head = [nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)]
    return _vgg11([64, 128, 256, 256, 512, 512, 512, 512], head)


@dataclass(frozen=True)
class Workload:
    """A model and the shape and number of its samples."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int

    def make(self, device: str) -> tuple[nn.Module, Tensor, Tensor]:
        """A seeded model and one batch of data on a device."""
        torch.manual_seed(0)
        model = self.build().to(device)
        X = torch.randn(self.samples, *self.shape).to(device)
        y = torch.randint(0, 10, (self.samples,)).to(device)
        return model, X, y


WORKLOADS = {
    w.name: w
    for w in (
        Workload("MLP", mlp, (784,), 2048),
        Workload("LeNet5", lenet5, (3, 32, 32), 1024),
        Workload("VGG11-W64", vgg11_w64, (3, 32, 32), 256),
        Workload("VGG11-28M", vgg11_28m, (3, 32, 32), 1024),
    )
}
