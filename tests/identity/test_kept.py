"""A kept operator is one matrix: after any change of the model its products are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from curvescope.errors import CurvescopeError
from curvescope.identity import Snapshot
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra import trace
from curvescope.training import Recipe, train
from tests.identity.world import MODELS, SETTINGS, first, samples, weight

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


# What is no number: settings, hooks, modules, the loss --------------------------------------------


@pytest.mark.parametrize("way", SETTINGS)
@pytest.mark.parametrize("kept", KEPT)
def test_another_setting_is_noticed_before_the_next_product(kept: str, way: str) -> None:
    model = first().model
    A = KEPT[kept](Problem(model, samples()))
    product(A)
    SETTINGS[way](model)
    for use in (lambda: product(A), lambda: A.identity, lambda: A.plan and product(A)):
        with pytest.raises(CurvescopeError, match="has changed since the problem was first used"):
            use()


def test_a_setting_is_noticed_before_the_first_product_of_a_known_matrix(tmp_path: Any) -> None:
    """The matrix was recognized as the one before, and its products would be those of now."""
    model = first().model
    A = Hessian(Problem(model, samples()), keep=False)
    before = A.identity
    model[1].eps = 0.5
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(CurvescopeError, match="'eps' of BatchNorm1d has changed"):
        trace(A, probes=2, generator=generator, checkpoint=tmp_path / "state")
    assert Hessian(Problem(model, samples())).identity != before


class Scaling(nn.Module):
    """All kinds of things that its output depends on and that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()
        self.table, self.options = [2.0, 3.0], {"factor": 2.0}
        self.constant = torch.ones(3, dtype=torch.float64)
        self.large = torch.ones(20_000, dtype=torch.float64)
        self.part = Part()
        self.apply = captured([1.0])

    def forward(self, x: Tensor) -> Tensor:
        factor = self.table[1] * self.options["factor"] * self.part.factor * self.large[0]
        out: Tensor = self.apply(factor * self.layer(x) * self.constant)
        return out


class Part:
    factor: float = 1.0

    def __init__(self) -> None:
        self.factor = 2.0


def captured(factors: list[float]) -> Callable[[Tensor], Tensor]:
    return lambda x: factors[0] * x


INSIDE: dict[str, Callable[[Any], object]] = {
    "an element of a list": lambda m: m.table.__setitem__(1, 5.0),
    "a value of a mapping": lambda m: m.options.update(factor=5.0),
    "a tensor through .data": lambda m: m.constant.data.mul_(2),
    "a tensor through NumPy": lambda m: np.multiply(m.constant.numpy(), 2, out=m.constant.numpy()),
    "a large tensor": lambda m: m.large.mul_(2),
    "another tensor": lambda m: setattr(m, "constant", 2 * m.constant),
    "an object's attribute": lambda m: setattr(m.part, "factor", 5.0),
    "another object": lambda m: setattr(m, "part", Part()),
    "what a function captures": lambda m: m.apply.__closure__[0].cell_contents.__setitem__(0, 5.0),
    "another function": lambda m: setattr(m, "apply", captured([1.0])),
    "one attribute more": lambda m: setattr(m, "more", 1),
    "one attribute less": lambda m: delattr(m, "large"),
}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("way", INSIDE)
def test_what_attributes_hold_is_looked_into(way: str, keep: bool) -> None:
    model = Scaling()
    A = Hessian(Problem(model, samples()), keep=keep)
    before = product(A)
    assert torch.equal(product(A), before)
    INSIDE[way](model)
    with pytest.raises(CurvescopeError, match=r"of Scaling has changed since the problem was"):
        product(A)


class Remembering(nn.Module):
    """Its forward writes down what it has seen, which decides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()
        self.calls, self.past = 0, list[float]()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.layer(x)
        self.past.append(float(x.sum()))
        return self.last


@pytest.mark.parametrize("keep", [True, False, "auto"])
def test_what_a_forward_writes_down_does_no_harm(keep: bool | str) -> None:
    model = Remembering()
    first_problem, other = (Problem(model, samples(), batch_size=size) for size in (None, 5))
    A, B = Hessian(first_problem, keep=keep), Hessian(other, keep=keep)
    before = product(A)
    torch.testing.assert_close(product(B), before)
    model(samples()[0])
    torch.testing.assert_close(product(A), before)
    torch.testing.assert_close(product(B), before)
    model.layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(CurvescopeError, match="'_forward_hooks' of Linear has changed"):
        product(A)


def test_what_an_interrupted_forward_writes_down_does_no_harm() -> None:
    class Failing(Remembering):
        broken = True

        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if self.broken:
                raise KeyboardInterrupt
            return out

    model = Failing()
    A = Hessian(Problem(model, samples()), keep=False)
    A.problem.check_unchanged()
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        product(A)
    Failing.broken = False
    assert torch.equal(product(A), product(A))


def test_what_an_evaluation_finds_changed_is_not_excused() -> None:
    model = first().model
    problem = Problem(model, samples())
    A = Hessian(problem, keep=True)
    product(A)
    model[1].eps = 0.5
    with problem.evaluation():
        model(samples()[0])
    with pytest.raises(CurvescopeError, match="'eps' of BatchNorm1d has changed"):
        product(A)


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor, self.part = 2.0, Part()
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return self.factor * self.part.factor * F.cross_entropy(z * self.temperature, y)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda loss: setattr(loss, "factor", 3.0), "'factor' of Tempered has changed"),
        (lambda loss: setattr(loss.part, "factor", 3.0), "'part' of Tempered has changed"),
        (
            lambda loss: loss.temperature.data.mul_(2),
            "numbers that the loss refers to have changed",
        ),
    ],
)
@pytest.mark.parametrize("keep", [True, False])
def test_another_loss_is_noticed(keep: bool, change: Callable[[Any], object], words: str) -> None:
    loss = Tempered()
    A = Hessian(Problem(first().model, samples(), loss=loss), keep=keep)
    product(A)
    product(A)
    change(loss)
    with pytest.raises(CurvescopeError, match=words):
        product(A)


def test_torchs_own_losses_are_those_that_were_given() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    A = Hessian(Problem(first().model, samples(), loss=loss), keep=False)
    before, name = product(A), A.identity
    loss.label_smoothing = 0.5
    assert loss.weight is not None
    loss.weight.mul_(torch.tensor([1.0, 1.0, 9.0]))
    assert torch.equal(product(A), before)
    assert A.identity == name


# The data -----------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a pair": lambda X, y: (X, y),
    "batches": lambda X, y: [(X[:7], y[:7]), (X[7:], y[7:])],
    "a data set": TensorDataset,
    "a loader": lambda X, y: DataLoader(TensorDataset(X, y), batch_size=5),
    "a loader of its own tensors": lambda X, y: DataLoader(Whole(X, y), batch_size=None),
}


class Whole(torch.utils.data.Dataset[Any]):
    def __init__(self, X: Tensor, y: Tensor) -> None:
        self.batch = X, y

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.batch


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "an operation": lambda X, y: X.mul_(2),
    "a view": lambda X, y: X[3].add_(1),
    "labels": lambda X, y: y.copy_(y.flip(0)),
    "through .data": lambda X, y: X.data.mul_(2),
    "one number through .data": lambda X, y: X.data[0, 0].add_(1),
    "through NumPy": lambda X, y: np.multiply(X.numpy(), 2, out=X.numpy()),
    "labels through .data": lambda X, y: y.data.copy_(y.flip(0)),
}


@pytest.mark.parametrize("kept", ["H", "H, kept by itself", "H, streamed", "a layer's G", "G"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", WRITES)
def test_data_that_are_written_to_never_give_other_products(
    write: str, form: str, kept: str
) -> None:
    """What is kept is in memory of its own; everything else is noticed."""
    X, y = samples()
    A = KEPT[kept](Problem(first().model, FORMS[form](X, y)))
    before = product(A)
    product(A)
    WRITES[write](X, y)
    try:
        again = product(A)
    except CurvescopeError as error:
        assert "the data have changed" in str(error) or "passes over the data" in str(error)  # noqa: PT017
    else:
        assert "streamed" not in kept
        torch.testing.assert_close(again, before)


@pytest.mark.parametrize("kept", ["H", "H, streamed"])
def test_large_data_that_are_written_to_past_the_count_are_refused(kept: str) -> None:
    X, y = (torch.cat([t] * 200) for t in samples())
    A = KEPT[kept](Problem(first().model, [(X, y), (X[:5].clone(), y[:5])]))
    product(A)
    X.numpy()[:] -= X.numpy().mean()
    with pytest.raises(CurvescopeError, match="the data have changed since the problem was built"):
        product(A)


@pytest.mark.parametrize(
    "kept", [name for name in KEPT if name not in ("H, streamed", "H, kept by itself")]
)
def test_what_is_kept_of_large_data_is_in_memory_of_its_own(kept: str) -> None:
    """A write that nobody can see: past torch's count, and between the numbers looked at."""
    X, y = (torch.cat([t] * 200) for t in samples())
    problem = Problem(first().model, (X, y))
    A = KEPT[kept](problem)
    product(A)
    before = product(A)
    X.numpy().reshape(-1)[600:1200] *= 3
    assert problem.data.unwritten()
    assert torch.equal(product(A), before)


def test_the_last_bit_of_one_number_is_noticed_by_streamed_products() -> None:
    X, y = samples()
    A = Hessian(Problem(first().model, (X, y)), keep=False)
    product(A)
    X[3, 1] = torch.nextafter(X[3, 1], X[3, 1] + 1)
    with pytest.raises(CurvescopeError, match="the data have changed since the problem was built"):
        product(A)


@pytest.mark.parametrize("write", WRITES)
def test_data_that_are_written_to_after_they_were_named_are_refused(write: str) -> None:
    X, y = samples()
    A = Hessian(Problem(first().model, (X, y)), keep=True)
    _ = A.identity
    WRITES[write](X, y)
    with pytest.raises(CurvescopeError, match=r"the data have changed|passes over the data"):
        product(A)


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
