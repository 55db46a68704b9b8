"""A kept operator is one matrix: after any change of the model its products are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.identity import Snapshot
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.training import Recipe, train
from tests.identity.world import MODELS, first, samples, weight

KEPT: dict[str, Callable[[Problem], LinearOperator]] = {
    "H": lambda p: Hessian(p, keep=True),
    "H, kept by itself": Hessian,
    "H, streamed": lambda p: Hessian(p, keep=False),
    "G": lambda p: GaussNewton(p, keep=True),
    "empirical Fisher": lambda p: EmpiricalFisher(p, keep=True),
    "Monte-Carlo Fisher": lambda p: MonteCarloFisher(
        p, generator=torch.Generator().manual_seed(0), keep=True
    ),
    "a layer's H": lambda p: Hessian(p, keep=True).block("3"),
    "a layer's G": lambda p: GaussNewton(p, keep=True).block("0"),
    "a sum": lambda p: Hessian(p, keep=True) - 2 * GaussNewton(p, keep=True),
}


def step(model: nn.Module, make: Callable[..., torch.optim.Optimizer], **options: object) -> None:
    optimizer = make(model.parameters(), lr=1e-3, **options)
    X, y = samples()
    F.cross_entropy(model(X), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def compiled(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    X, y = samples()
    F.cross_entropy(model(X), y).backward()
    torch.compile(optimizer.step, backend="eager")()
    optimizer.zero_grad()


def copied(model: nn.Module) -> None:
    with torch.no_grad():
        weight(model)[0].copy_(torch.ones(4))


def loaded(model: nn.Module) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["3.bias"][1] += 1
    model.load_state_dict(state)


def replaced(model: nn.Module) -> None:
    weight(model).data = weight(model).detach() + 1e-9


def through_numpy(model: nn.Module) -> None:
    weight(model).detach().numpy()[0, 0] = 3.0


def another_parameter(model: nn.Module) -> None:
    model.get_submodule("3").bias = nn.Parameter(torch.ones(3, dtype=torch.float64))


def buffer_data(model: nn.Module) -> None:
    model.get_buffer("1.running_var").data.mul_(2)


def trained(model: nn.Module) -> None:
    train(model, samples(), Recipe(seed=0, epochs=1, batch_size=4))


ROADS: dict[str, Callable[[nn.Module], object]] = {
    **MODELS,
    "copy_ under no_grad": copied,
    "SGD": lambda m: step(m, torch.optim.SGD),
    "SGD, foreach": lambda m: step(m, torch.optim.SGD, foreach=True, momentum=0.9),
    "Adam, foreach": lambda m: step(m, torch.optim.Adam, foreach=True),
    "Adam, fused": lambda m: step(m, torch.optim.Adam, fused=True),
    "AdamW, one by one": lambda m: step(m, torch.optim.AdamW, foreach=False),
    "a compiled step": compiled,
    "load_state_dict": loaded,
    "p.data = other": replaced,
    "NumPy's view": through_numpy,
    "another parameter": another_parameter,
    "a buffer through .data": buffer_data,
    "cs.train": trained,
}


def product(A: LinearOperator) -> torch.Tensor:
    return A @ torch.linspace(-1, 1, A.shape[1], dtype=torch.float64)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("kept", KEPT)
def test_a_change_is_noticed_before_the_next_product(kept: str, road: str) -> None:
    world = first()
    problem = Problem(world.model, world.data)
    A = KEPT[kept](problem)
    for _ in range(3):
        product(A)
    ROADS[road](world.model)
    with pytest.raises(CurvescopeError, match="weights have changed since the problem was built"):
        product(A)
    with pytest.raises(CurvescopeError, match="weights have changed since the problem was built"):
        _ = A.identity


@pytest.mark.parametrize("kept", KEPT)
def test_what_changes_no_number_does_no_harm(kept: str) -> None:
    world = first()
    A = KEPT[kept](Problem(world.model, world.data))
    before = product(A)
    weight(world.model).data = weight(world.model).detach().clone()
    world.model.train()
    world.model.requires_grad_(False)
    torch.testing.assert_close(product(A), before)


def test_a_change_that_is_taken_back_does_no_harm() -> None:
    world = first()
    A = Hessian(Problem(world.model, world.data), keep=True)
    before = product(A)
    weight(world.model).data.neg_()
    with pytest.raises(CurvescopeError, match="weights have changed"):
        product(A)
    weight(world.model).data.neg_()
    assert torch.equal(product(A), before)


# Snapshots ----------------------------------------------------------------------------------------

TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
    torch.int32, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4, 5), (0,)], ids=str)
def test_every_bit_of_every_type_is_compared(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    snapshot = Snapshot([tensor])
    assert snapshot.matches([tensor])
    assert snapshot.matches([tensor.clone()])
    if tensor.numel():
        flat = tensor.view(-1).view(torch.uint8)
        for place in range(0, flat.numel(), 3):
            flat[place] ^= 1
            assert not snapshot.matches([tensor])
            flat[place] ^= 1
    assert snapshot.matches([tensor])


def test_other_shapes_types_and_numbers_of_tensors_do_not_match() -> None:
    tensor = torch.zeros(4)
    snapshot = Snapshot([tensor])
    for others in ([], [tensor, tensor], [tensor.view(2, 2)], [tensor.int()], [tensor.double()]):
        assert not snapshot.matches(others)


def test_layouts_and_nan_are_no_change() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    image[0, 0, 0, 0] = float("nan")
    snapshot = Snapshot([image, image.transpose(1, 2)])
    assert snapshot.matches([image.contiguous(), image.transpose(1, 2).clone()])


@pytest.mark.gpu
def test_on_a_gpu_the_host_waits_once() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    tensors = [torch.randn(100, 100, device="cuda") for _ in range(20)]
    snapshot = Snapshot(tensors)
    assert snapshot.matches(tensors)
    tensors[7].data[3, 3].neg_()
    assert not snapshot.matches(tensors)
