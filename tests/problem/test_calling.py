"""Modules and tensors that a model has at several places."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.problem.calling import call_with


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def repeated() -> tuple[nn.Module, nn.Linear, nn.BatchNorm1d]:
    """One linear layer and one batch norm, each registered and used twice."""
    layer, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    model = nn.Sequential(layer, norm, nn.ReLU(), layer, norm, nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for seed, p in enumerate(model.parameters()):
            p.copy_(normal(*p.shape, seed=10 + seed))
    return model.eval(), layer, norm


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    return normal(9, 4, seed=1), torch.randint(3, (9,), generator=generator(2))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_module_at_two_places_is_differentiated_at_both(
    mode: str, data: tuple[Tensor, Tensor]
) -> None:
    model, *_ = repeated()
    X, y = data
    shapes = [p.shape for p in model.parameters()]
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def loss(w: Tensor) -> Tensor:
        pieces = w.split([s.numel() for s in shapes])
        W, b, gain, shift, V, c = (t.view(s) for t, s in zip(pieces, shapes, strict=True))
        z = X
        for activation in (torch.relu, torch.tanh):
            z = F.linear(z, W, b)
            mean, var = torch.zeros(4).double(), torch.ones(4).double()
            if mode == "train":
                mean, var = z.mean(0), z.var(0, unbiased=False)
            z = activation((z - mean) / (var + 1e-5).sqrt() * gain + shift)
        return F.cross_entropy(F.linear(z, V, c), y)

    expected = torch.autograd.functional.hessian(loss, flat)
    found = cs.Hessian(cs.Problem(model, data, mode=mode)).dense()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_model_keeps_its_own_tensors(data: tuple[Tensor, Tensor]) -> None:
    model, layer, norm = repeated()
    before = [*model.parameters(), *model.buffers()]
    copies = [t.detach().clone() for t in before]
    problem = cs.Problem(model, data)
    cs.Hessian(problem) @ torch.ones(problem.params.size, dtype=torch.float64)
    cs.sharpness(problem, test=data, generator=generator())
    cs.TraceRegularizer("hessian", weight=1.0, generator=generator())(model, *data)
    after = [*model.parameters(), *model.buffers()]
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert isinstance(layer.weight, nn.Parameter)
    assert "running_mean" in norm._buffers
    for tensor, copy in zip(after, copies, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0)


def test_a_tensor_of_two_modules_is_replaced_in_both() -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    doubled = 2 * torch.eye(2)
    found = call_with(model, {"0.weight": doubled}, (torch.tensor([1.0, 3.0]),))
    assert found.tolist() == [4.0, 12.0]
    assert second.weight is first.weight
