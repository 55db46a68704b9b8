"""The network and the data of these studies: small enough for exact Hessians at every look."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, one_hot

from curvescope.data import dataset
from curvescope.monitor import Preconditioned, stability_limits
from curvescope.operators.base import LinearOperator
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem

PIXELS, CLASSES = 49, 10


def digits(samples: int) -> tuple[Tensor, Tensor]:
    """The first samples of MNIST-6k as 7 × 7 pixels around their mean, in float64, and labels."""
    data = dataset("mnist-6k")
    X = avg_pool2d(data.X[:samples].double(), 4).flatten(1)
    return X - X.mean(0), data.y[:samples]


def targets(y: Tensor) -> Tensor:
    """One of ten, for the squared error."""
    return one_hot(y, CLASSES).double()


def tanh_network(width: int, generator: torch.Generator) -> nn.Sequential:
    """Two layers with tanh between them, initialized as PyTorch does, from a generator."""
    model = nn.Sequential(nn.Linear(PIXELS, width), nn.Tanh(), nn.Linear(width, CLASSES)).double()
    for parameter, fan in zip(model.parameters(), (PIXELS, PIXELS, width, width), strict=True):
        nn.init.uniform_(parameter, -(fan**-0.5), fan**-0.5, generator=generator)
    return model


def exact_part(
    model: nn.Module, data: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer
) -> float:
    """The largest eigenvalue of the whole matrix, as a part of the optimizer's limit."""
    limits = stability_limits(optimizer, list(model.parameters()))
    assert limits is not None, "these optimizers have moved all parameters, and have a limit"
    A: LinearOperator = Hessian(Problem(model, data, loss="mse"))
    if limits.inverse_root is not None:
        A = Preconditioned(A, limits.inverse_root, limits.decay)
    return float(torch.linalg.eigvalsh(A.dense())[-1]) / limits.threshold
