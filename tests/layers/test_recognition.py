"""Kinds by what a module computes, and the derivatives of every kind against autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.layers import (
    LookupKind,
    ScaleKind,
    kind_of,
    layer_kind,
    matrix_kind,
    registered,
)
from curvescope.layers import kind as register
from curvescope.layers.recognition import recognized
from tests.transformers_of_ours import RootMeanSquare, Transposed


class Plain(nn.Module):
    """``x Wᵀ + b``, of no class of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class InSingle(nn.Module):
    """The norm of Llama, which works in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(4)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Squared(nn.Module):
    """Not linear in its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight**2 * x


class Noisy(Squared):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x + torch.randn_like(x)


class Remembering(Squared):
    """Would be a scale, but a trial would be remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(x)
        return self.weight * x


class Counting(Squared):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.weight * x


class Mixing(Squared):
    """A scale, and a shift that depends on it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x + self.weight.sum()


SCALES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer-norm": (lambda: nn.LayerNorm(4), (5, 4)),
    "layer-norm-two-dimensions": (lambda: nn.LayerNorm((3, 4)), (5, 3, 4)),
    "layer-norm-no-bias": (lambda: nn.LayerNorm(4, bias=False), (4,)),
    "rms-norm": (lambda: nn.RMSNorm(4), (5, 4)),
    "group-norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    "batch-norm": (lambda: nn.BatchNorm2d(4), (4, 3, 2)),
    "llama": (InSingle, (5, 4)),
    "gemma": (lambda: RootMeanSquare(4, plus=1.0), (5, 4)),
    "prelu": (lambda: nn.PReLU(4), (4, 3)),
    "prelu-one-slope": (nn.PReLU, (4, 3)),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_give_the_gradient(name: str) -> None:
    torch.manual_seed(0)
    build, shape = SCALES[name]
    module = build().double().eval()
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    x = torch.randn(3, *shape, dtype=torch.float64)
    kind = kind_of(module)
    assert isinstance(kind, ScaleKind)
    y = module(x)
    e = torch.randn_like(y)
    rows, errors = kind.rows(x, 3), kind.errors(e, 3)
    assert errors.shape[2] == kind.matrix_shape[0]
    (by_weight,) = torch.autograd.grad(y, module.weight, e, retain_graph=True)
    torch.testing.assert_close((errors * rows).sum((0, 1)), by_weight.flatten())
    if getattr(module, "bias", None) is not None:
        (by_bias,) = torch.autograd.grad(y, module.bias, e)
        torch.testing.assert_close(errors.sum((0, 1)), by_bias.flatten())
    assert kind.agrees(x, y.detach())
    assert not kind.agrees(x, 2 * y.detach())
    assert matrix_kind(module) is None
    assert registered(module) is None  # what is initialized and counted as a layer


def test_tables_give_the_gradient() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, padding_idx=2).double()
    kind = kind_of(table)
    assert isinstance(kind, LookupKind)
    x = torch.tensor([[1, 2, 1], [5, 0, 2]])
    y = table(x)
    e = torch.randn_like(y)
    indices, errors = kind.rows(x, 2), kind.errors(e, 2)
    reached = kind.reaching(errors[:, None], indices)[:, 0]
    ours = torch.zeros(6, 3).double().index_add_(0, indices.flatten(), reached.flatten(0, 1))
    torch.testing.assert_close(ours, torch.autograd.grad(y, table.weight, e)[0])
    for other in (nn.Embedding(6, 3, max_norm=1.0), nn.Embedding(6, 3, scale_grad_by_freq=True)):
        assert kind_of(other) is None


class Scaled(nn.Embedding):
    """As Gemma has it, with the factor in a buffer, or Bart, as a number."""

    def __init__(self, *, buffer: bool, **settings: int) -> None:
        super().__init__(6, 3, **settings)  # type: ignore[arg-type]
        if buffer:
            self.register_buffer("scale", torch.tensor(1.5), persistent=False)
        else:
            self.scale = 1.5

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


@pytest.mark.parametrize("buffer", [True, False])
def test_scaled_tables_give_the_gradient(buffer: bool) -> None:
    torch.manual_seed(0)
    table = Scaled(buffer=buffer, padding_idx=0).double()
    kind = kind_of(table)
    assert isinstance(kind, LookupKind)
    x = torch.tensor([[1, 2, 1], [5, 0, 2]])
    y = table(x)
    e = torch.randn_like(y)
    indices, errors = kind.rows(x, 2), kind.errors(e, 2)
    reached = kind.reaching(errors[:, None], indices)[:, 0]
    ours = torch.zeros(6, 3).double().index_add_(0, indices.flatten(), reached.flatten(0, 1))
    torch.testing.assert_close(ours, torch.autograd.grad(y, table.weight, e)[0])
    assert kind_of(Scaled(buffer=buffer, scale_grad_by_freq=True)) is None
    assert kind_of(Scaled(buffer=buffer, max_norm=1)) is None


def test_matrices_of_other_classes() -> None:
    for module, name in ((Plain(), "Linear"), (Transposed(4, 5), "TransposedLinear")):
        module = module.double()
        kind = matrix_kind(module)
        assert kind is not None
        assert type(kind).__name__ == name
        assert kind.matrix_shape == (5, 4)
        x = torch.randn(2, 3, 4, dtype=torch.float64)
        torch.testing.assert_close(kind.rows(x, 2) @ kind.matrix.T + module.bias, module(x))
        assert kind.agrees(x, module(x))


@pytest.mark.parametrize("make", [Squared, Noisy, Remembering, Mixing, nn.Bilinear, nn.LSTM])
def test_what_is_not_recognized(make: Callable[..., nn.Module]) -> None:
    module = make(*(2,) * {nn.Bilinear: 3, nn.LSTM: 2}.get(make, 0))  # type: ignore[call-overload]
    assert kind_of(module) is None
    if isinstance(module, Remembering):
        assert module.calls == []


def test_a_trial_leaves_everything_as_it_was() -> None:
    """The module, its parameters and torch's random numbers."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    module = Counting()
    torch.set_rng_state(state)
    before = module.weight.detach().clone()
    assert isinstance(kind_of(module), ScaleKind)
    assert module.count == 0
    assert module.training
    assert torch.equal(module.weight, before)
    assert torch.equal(torch.get_rng_state(), state)
    module.forward = lambda x: x  # type: ignore[method-assign]
    assert kind_of(module) is None


def test_large_weights_are_tried_out_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from curvescope.layers import recognition

    monkeypatch.setattr(recognition, "_LARGE", 8)
    monkeypatch.setattr(recognition, "_cache", {})
    for module, name in (
        (Plain(), "Linear"), (Transposed(5, 5), "TransposedLinear"),
        (Scaled(buffer=True), "ScaledEmbedding"),
    ):  # fmt: skip
        kind = recognized(module)
        assert kind is not None
        assert kind.__name__ == name


def test_settings_decide() -> None:
    """Two modules of one class that compute different things."""

    class Either(nn.Module):
        def __init__(self, square: bool) -> None:
            super().__init__()
            self.weight, self.square = nn.Parameter(torch.ones(4)), square

        def forward(self, x: Tensor) -> Tensor:
            return self.weight**2 * x if self.square else self.weight * x

    assert recognized(Either(square=False)) is not None
    assert recognized(Either(square=True)) is None


def test_batch_norms_need_statistics_that_do_not_move() -> None:
    assert kind_of(nn.BatchNorm1d(3)).works_in("eval")
    assert not kind_of(nn.BatchNorm1d(3)).works_in("train")
    assert not kind_of(nn.BatchNorm1d(3, track_running_stats=False)).works_in("eval")
    assert kind_of(nn.BatchNorm1d(3, affine=False)) is None


def test_a_table_and_a_scale_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page on layers says: a line for each."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.words = nn.Parameter(torch.randn(5, 2)), ["not plain"]

        def forward(self, x: Tensor) -> Tensor:
            return self.weight[x]

    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.notes = nn.Parameter(torch.randn(2)), ["not plain"]

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * torch.tanh(x)

    monkeypatch.setattr(register, "_KINDS", dict(register._KINDS))
    assert kind_of(Table()) is None
    assert kind_of(Gain()) is None

    @layer_kind(Table)
    class OfTable(LookupKind):
        pass

    @layer_kind(Gain)
    class OfGain(ScaleKind):
        pass

    assert isinstance(kind_of(Table()), OfTable)
    kind = kind_of(Gain())
    assert isinstance(kind, OfGain)
    x = torch.randn(3, 4, 2)
    torch.testing.assert_close(kind.rows(x, 3), torch.tanh(x))
