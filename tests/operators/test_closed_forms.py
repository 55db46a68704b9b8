"""Operators against matrices known with pencil and paper, without the dense reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from tests.conformance import assert_relative
from tests.reference import closed_forms
from tests.reference.curvature import Reference
from tests.reference.losses import BinaryLogistic, CrossEntropy, MeanSquare
from tests.tolerances import EXACT

RTOL = EXACT[torch.float64]


def inputs(n: int = 12, d: int = 4) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def linear(d: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(d, outputs, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(
            torch.randn(outputs, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        )
    return layer


def uneven(X: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(X.split((7, 4, 1)), y.split((7, 4, 1)), strict=True))


def check_both(model: nn.Module, data, loss: str, reference_loss, expected: Tensor) -> None:
    """H and G equal the formula (the model is linear), and so does the reference."""
    problem = cs.Problem(model, data, loss=loss)
    assert_relative(cs.Hessian(problem).dense(), expected, rtol=RTOL, what="H")
    assert_relative(cs.GaussNewton(problem).dense(), expected, rtol=RTOL, what="G")
    reference = Reference(model, data, reference_loss)
    assert_relative(reference.hessian(), expected, rtol=RTOL, what="reference H")
    assert_relative(reference.gauss_newton(), expected, rtol=RTOL, what="reference G")


def test_linear_regression() -> None:
    X = inputs()
    y = inputs(12, 3)
    check_both(linear(4, 3), uneven(X, y), "mse", MeanSquare(), closed_forms.linear_mse(X, 3))


def test_softmax_regression() -> None:
    X, model = inputs(), linear(4, 3)
    y = torch.arange(12) % 3
    check_both(
        model,
        uneven(X, y),
        "cross_entropy",
        CrossEntropy(),
        closed_forms.softmax_regression(X, model.weight.detach()),
    )


def test_logistic_regression() -> None:
    X, model = inputs(), linear(4, 1)
    y = (torch.arange(12) % 2).double()
    expected = closed_forms.logistic_regression(X, model.weight.detach()[0])
    check_both(model, uneven(X, y[:, None]), "binary_logistic", BinaryLogistic(), expected)


class ScalarProduct(nn.Module):
    """``a b x``."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor(b, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * self.b * x


def test_product_of_two_parameters() -> None:
    """Two scalar parameters, ``H ≠ G`` and ``H − G`` known."""
    a, b, x, y = 1.5, -0.5, 2.0, 0.75
    data = (torch.tensor([[x]], dtype=torch.float64), torch.tensor([[y]], dtype=torch.float64))
    problem = cs.Problem(ScalarProduct(a, b), data, loss="mse")
    H, G = closed_forms.scalar_product_mse(a, b, x, y)
    assert_relative(cs.Hessian(problem).dense(), H, rtol=RTOL, what="H")
    assert_relative(cs.GaussNewton(problem).dense(), G, rtol=RTOL, what="G")
    assert_relative(
        (cs.Hessian(problem) - cs.GaussNewton(problem)).dense(), H - G, rtol=RTOL, what="E"
    )


def test_empirical_fisher_of_linear_regression() -> None:
    """``g_n = (2/C) vec(r_n x_nᵀ)``, so ``F = (4/C²) E[r rᵀ ⊗ x xᵀ]``."""
    X, Y, model = inputs(), inputs(12, 3).flip(0), linear(4, 3)
    R = X @ model.weight.detach().T - Y
    expected = (
        sum(torch.kron(torch.outer(r, r), torch.outer(x, x)) for r, x in zip(R, X, strict=True))
        * 4
        / 9
        / 12
    )
    op = cs.EmpiricalFisher(cs.Problem(model, uneven(X, Y), loss="mse"))
    assert_relative(op.dense(), expected, rtol=RTOL, what="empirical Fisher")


@pytest.mark.parametrize("sizes", [(12,), (11, 1), (1,) * 12])
def test_batching_does_not_matter(sizes: tuple[int, ...]) -> None:
    X, model = inputs(), linear(4, 3)
    data = list(zip(X.split(sizes), (torch.arange(12) % 3).split(sizes), strict=True))
    expected = closed_forms.softmax_regression(X, model.weight.detach())
    assert_relative(
        cs.Hessian(cs.Problem(model, data)).dense(), expected, rtol=RTOL, what=f"batches {sizes}"
    )
