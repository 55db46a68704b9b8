"""Functions with a derivative of their own (``torch.autograd.Function``), on the tape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.engine.engine import Engine


class Two(torch.autograd.Function):
    """``(x y k, x + y)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        ctx.k = k
        return x * y * k, x + y

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y * ctx.k + h, None, g * x * ctx.k + h


class StraightThrough(torch.autograd.Function):
    """Rounds, and pretends not to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()


class Net(nn.Module):
    def __init__(self, middle: Any) -> None:
        super().__init__()
        self.fc1, self.fc2, self.middle = nn.Linear(3, 4), nn.Linear(4, 3), middle

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.middle(torch.tanh(self.fc1(x))))


def both(x: Tensor) -> Tensor:
    a, b = Two.apply(x, 2.0, x.sin())
    return a * b


def one_of_two_with_itself(x: Tensor) -> Tensor:
    return Two.apply(x, 0.5, x)[0].exp()


def nested(x: Tensor) -> Tensor:
    return Two.apply(both(x), 1.0, StraightThrough.apply(3 * x))[0]


def constant_argument(x: Tensor) -> Tensor:
    return Two.apply(torch.ones_like(x), 3.0, x)[0] ** 2


MIDDLES = [both, one_of_two_with_itself, nested, constant_argument, StraightThrough.apply]


@pytest.mark.parametrize("middle", MIDDLES, ids=lambda m: getattr(m, "__qualname__", "apply"))
def test_as_autograd_has_it(middle: Any) -> None:
    model = Net(middle).double()
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(5, 3, generator=g).double(), torch.arange(5) % 3
    parameters = list(model.parameters())

    def flat(pieces: Any) -> Tensor:
        pairs = zip(pieces, parameters, strict=True)
        return torch.cat([(torch.zeros_like(p) if t is None else t).flatten() for t, p in pairs])

    z = model(X)
    slope = flat(torch.autograd.grad(F.cross_entropy(z, y), parameters, create_graph=True))
    V = torch.randn(len(slope), 3, generator=g).double()
    H = torch.stack([flat(torch.autograd.grad(slope @ v, parameters, retain_graph=True,
                                              allow_unused=True)) for v in V.T], 1)  # fmt: skip
    eye = torch.eye(z.numel()).double().view(-1, *z.shape)
    J = torch.stack([flat(torch.autograd.grad(z, parameters, e, retain_graph=True)) for e in eye])
    p = z.detach().softmax(1)
    B = torch.block_diag(*(torch.diag(q) - torch.outer(q, q) for q in p)) / len(X)
    problem = cs.Problem(model, (X, y))
    for keep in (True, False):
        for A, expected in ((cs.Hessian(problem, keep=keep), H),
                            (cs.GaussNewton(problem, keep=keep), J.T @ (B @ (J @ V)))):  # fmt: skip
            torch.testing.assert_close(A @ V, expected, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(A @ V[:, 0], expected[:, 0], rtol=1e-11, atol=1e-13)
    assert problem.companion(Engine)._linearizer.tapes("second order")


class Squared(nn.Module):
    """A linear layer whose weight goes through a function of the user's, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        product, _ = Two.apply(self.weight, 0.5, self.weight)
        return torch.tanh(x @ product.T)


@pytest.mark.parametrize("keep", [True, False])
def test_a_function_of_a_parameter_is_recorded(keep: bool) -> None:
    torch.manual_seed(0)
    model, X, y = Squared(), torch.randn(6, 4).double(), torch.arange(6) % 3

    def loss(weight: Tensor) -> Tensor:
        return F.cross_entropy(torch.tanh(x_of(weight)), y)

    def x_of(weight: Tensor) -> Tensor:
        return X @ (0.5 * weight.view(3, 4) ** 2).T

    expected = torch.autograd.functional.hessian(loss, model.weight.detach().flatten())
    H = cs.Hessian(cs.Problem(model, (X, y)), keep=keep)
    torch.testing.assert_close(H @ torch.eye(12).double(), expected, rtol=1e-10, atol=1e-12)
    assert "graph" not in H.plan.strategy
