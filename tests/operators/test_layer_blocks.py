"""Layer blocks in closed form: exact against dense references, and taken whenever exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.engine.engine import Engine
from tests.cases import _smoothed, classes, convert, positions, signs, values
from tests.conformance import assert_relative, check_operator, check_products
from tests.reference.curvature import Reference
from tests.reference.losses import BinaryLogistic, CrossEntropy, MeanSquare
from tests.tolerances import EXACT

RTOL = EXACT[torch.float64]


def relu_mlp(outputs: int = 3, inputs: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 5),
        nn.ReLU(),
        nn.Linear(5, 4, bias=False),
        nn.ReLU(),
        nn.Linear(4, outputs),
    )


def conv_net(*, norm: bool = False, **settings: Any) -> nn.Module:
    first = nn.Conv2d(2, 4, **({"kernel_size": 3} | settings))
    size = first(torch.zeros(1, 2, 6, 6)).shape[-2:]
    norms = [nn.BatchNorm2d(4)] if norm else []
    if norm:
        with torch.no_grad():
            norms[0].running_mean.normal_()
            norms[0].running_var.uniform_(0.5, 2.0)
            norms[0].weight.normal_()
    pooled = [s // 2 for s in size]
    return nn.Sequential(
        first, nn.ReLU(inplace=True), *norms, nn.MaxPool2d(2), nn.Conv2d(4, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3 * pooled[0] * pooled[1], 3),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """A shortcut around a convolution, and an average over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 3, padding=1)
        self.conv2 = nn.Conv2d(2, 3, 3, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(torch.relu(x + self.conv1(x))).mean((2, 3))


class PositionWise(nn.Module):
    """One linear layer at three positions, and another that is applied once."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(4, 5), nn.Linear(15, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.each(x)).flatten(1))


def problem_of(make: Callable[[], nn.Module], data: Any, loss: Any = "cross_entropy") -> cs.Problem:
    torch.manual_seed(3)
    return cs.Problem(make().double(), convert(data, torch.float64), loss=loss)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mlp": (relu_mlp, classes(4)),
    "mlp-one-sample": (relu_mlp, classes(4, sizes=(1,))),
    "mlp-two-classes": (lambda: relu_mlp(2), classes(4, classes=2)),
    "narrow": (
        lambda: nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 3)),
        classes(1),
    ),
    "conv": (conv_net, classes(2, 6, 6)),
    "conv-stride-padding": (lambda: conv_net(stride=2, padding=2), classes(2, 6, 6)),
    "conv-dilation": (lambda: conv_net(kernel_size=2, dilation=2), classes(2, 6, 6)),
    "conv-groups": (lambda: conv_net(groups=2, padding=1), classes(2, 6, 6)),
    "conv-batch-norm": (lambda: conv_net(norm=True, padding="same"), classes(2, 6, 6)),
    "residual": (ResidualBlock, classes(2, 4, 4)),
    "positions": (PositionWise, classes(3, 4)),
}


def recorded(problem: cs.Problem) -> set[str]:
    return {layer for layer, _ in problem.companion(Engine)._closed._factors}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("keep", [True, "auto"])
def test_hessian_and_gauss_newton_of_piecewise_linear_networks(name: str, keep: Any) -> None:
    make, data = NETWORKS[name]
    problem = problem_of(make, data)
    reference = Reference(problem.model, convert(data, torch.float64), CrossEntropy())
    for operator, full in (
        (cs.Hessian(problem, keep=keep), reference.hessian()),
        (cs.GaussNewton(problem, keep=keep), reference.gauss_newton()),
    ):
        operator.release()
        linear = [
            n for n, m in problem.model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)
        ]
        for layer in linear:
            own = [n for n in reference.names if n.rpartition(".")[0] == layer]
            for block in (layer, *own):
                inside = own if block == layer else [block]
                indices = reference.indices(inside)
                sub = full[indices][:, indices]
                scale = float(full.norm()) if sub.norm() <= 1e-12 * full.norm() else None
                check_products(operator.block(block), sub, rtol=RTOL, scale=scale)
        assert recorded(problem) == (set(linear) if keep is True else set())


def test_against_the_masked_product_of_the_whole_network() -> None:
    """The papers' way (DH App. C): the full product of a vector that is zero outside the layer."""
    problem = problem_of(*NETWORKS["conv-batch-norm"])
    H = cs.Hessian(problem)
    for layer in ("0", "4"):
        slices = [problem.params.slice(n) for n in problem.params.resolve(layer)]
        indices = torch.cat([torch.arange(s.start, s.stop) for s in slices])
        V = torch.randn(len(indices), 3).double()
        masked = torch.zeros(H.shape[0], 3).double()
        masked[indices] = V
        assert_relative(H.block(layer) @ V, (H @ masked)[indices], rtol=1e-12, what=layer)


WIDE = {"features": 16}
LOSSES: dict[str, tuple[Any, Any, Any, Any, set[str]]] = {
    "mse": (relu_mlp, values(4), "mse", MeanSquare(), {"0", "4"}),
    "logistic": (lambda: relu_mlp(1), signs((1,)), "binary_logistic", BinaryLogistic(), {"0", "4"}),
    "label-smoothing": (relu_mlp, classes(4), _smoothed, CrossEntropy(smoothing=0.2), {"0", "4"}),
    "positions": (
        lambda: relu_mlp(4, 16), positions(**WIDE), "cross_entropy", CrossEntropy(), {"0", "4"},
    ),
    "ignored": (
        lambda: relu_mlp(4, 16),
        positions(**WIDE, ignored=True, empty_batch=True),
        "cross_entropy",
        CrossEntropy(),
        {"0", "4"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    make, data, loss, reference_loss, closed = LOSSES[name]
    problem = problem_of(make, data, loss)
    reference = Reference(problem.model, convert(data, torch.float64), reference_loss)
    full = reference.gauss_newton()
    for layer in ("0", "4"):
        indices = reference.indices([f"{layer}.weight", f"{layer}.bias"])
        G = cs.GaussNewton(problem, keep=True).block(layer)
        check_products(G, full[indices][:, indices], rtol=RTOL)
    assert recorded(problem) == closed


def test_empirical_and_monte_carlo_fisher() -> None:
    data = convert(classes(4), torch.float64)
    torch.manual_seed(3)
    model = relu_mlp().double()
    reference = Reference(model, data, CrossEntropy())
    indices = reference.indices(["0.weight", "0.bias"])
    F = cs.EmpiricalFisher(cs.Problem(model, data), keep=True)
    check_operator(
        F.block("0"), reference.empirical_fisher()[indices][:, indices], rtol=RTOL, scale=None
    )
    sampled = [
        cs.MonteCarloFisher(
            cs.Problem(model, data),
            samples=2,
            generator=torch.Generator().manual_seed(1),
            keep=True,
        )
        for _ in range(2)
    ]
    closed, whole = sampled[0].block("0"), sampled[1].dense()
    assert_relative(closed.dense(), whole[indices][:, indices], rtol=1e-12, what="sampled Fisher")
    assert recorded(sampled[0].problem) == {"0"}


@pytest.mark.parametrize("layer", ["0", "2", "0.bias", "4.weight"])
@pytest.mark.parametrize("keep", [True, "auto"])
def test_the_whole_battery(layer: str, keep: Any) -> None:
    make, data = NETWORKS["mlp"]
    problem = problem_of(make, data)
    reference = Reference(problem.model, convert(data, torch.float64), CrossEntropy())
    indices = reference.indices(problem.params.resolve(layer))
    check_operator(
        cs.Hessian(problem, keep=keep).block(layer),
        reference.hessian()[indices][:, indices],
        rtol=RTOL,
        chunked=cs.Hessian(problem, columns=2, keep=keep).block(layer),
    )


def test_float32() -> None:
    make, data = NETWORKS["conv-stride-padding"]
    torch.manual_seed(3)
    model = make()
    full = cs.Hessian(cs.Problem(model.double(), convert(data, torch.float64))).block("0").dense()
    block = cs.Hessian(cs.Problem(model.float(), data)).block("0")
    check_products(block, full, rtol=EXACT[torch.float32])
