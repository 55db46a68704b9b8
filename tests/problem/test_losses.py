"""Derivatives of the losses where a network is sure of its answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from curvescope.problem.losses import BinaryLogistic, CrossEntropy, LossAt


def sure(margin: float) -> tuple[Tensor, Tensor]:
    """Logits of float32 with a wide margin, half of them for the label."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(40, 5, generator=g)
    y = torch.randint(5, (40,), generator=g)
    likely = torch.where(torch.arange(40) % 2 == 0, y, (y + 1) % 5)
    z[torch.arange(40), likely] += margin
    return z, y


@pytest.mark.parametrize("margin", [0.0, 15.0, 40.0])
def test_cross_entropy_does_not_cancel(margin: float) -> None:
    z, y = sure(margin)
    exact = z.double().requires_grad_()
    p = torch.softmax(exact, 1)
    t = torch.randn(3, 40, 5, generator=torch.Generator().manual_seed(1))
    other = p.detach().scatter(1, y[:, None], 0.0)
    gradient = other.scatter(1, y[:, None], -other.sum(1, keepdim=True))
    away = t[:, :, :, None].double() - t[:, :, None, :].double()  # t_c − t_d
    hessian = torch.einsum("nc,nd,kncd->knc", p.detach(), p.detach(), away)
    at: LossAt = CrossEntropy().at(z, y)
    tol = (10 + margin) * torch.finfo(z.dtype).eps  # exp(z) has the rounding of z
    for sample in range(40):
        error = (at.gradient()[sample].double() - gradient[sample]).norm()
        assert error <= tol * gradient[sample].norm()
        error = (at.hessian(t)[:, sample].double() - hessian[:, sample]).norm()
        assert error <= tol * hessian[:, sample].norm()


@pytest.mark.parametrize("logit", [-30.0, -16.0, 0.5, 16.0, 30.0])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_binary_logistic_does_not_cancel(logit: float, label: float) -> None:
    z = torch.tensor([[logit]])
    at = BinaryLogistic().at(z, torch.tensor([label]))
    p, q = torch.sigmoid(z.double()), torch.sigmoid(-z.double())
    torch.testing.assert_close(at.gradient().double(), -q if label else p, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(
        at.hessian(torch.ones(1, 1, 1)).double(), (p * q)[None], rtol=1e-6, atol=0.0
    )
