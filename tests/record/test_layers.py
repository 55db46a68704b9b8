"""Layer records against per-sample gradients by plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.record.layers import LayerRecord, record_layers
from curvescope.record.selection import UnsupportedLayer, linear_layers
from tests.case_models import ReusedModule, TiedLanguageModel
from tests.cases import BY_NAME

K = 3


def fixed_directions(z: Tensor, target: Any) -> Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.randn((z.shape[0], K, *z.shape[1:]), generator=g, dtype=z.dtype)


def expected_gradients(model: nn.Module, x: Tensor, layer: str) -> tuple[Tensor, Tensor | None]:
    """``[B, K, m, n]`` and ``[B, K, m]``: one backward pass for each sample and direction."""
    module = model.get_submodule(layer)
    weights, biases = [], []
    z = model(x)
    u = fixed_directions(z, None)
    for b in range(z.shape[0]):
        for k in range(K):
            wanted = [module.weight] if module.bias is None else [module.weight, module.bias]
            grads = torch.autograd.grad((z[b] * u[b, k]).sum(), wanted, retain_graph=True)
            weights.append(grads[0].flatten(1))
            biases += grads[1:]
    shape = (z.shape[0], K)
    bias = torch.stack(biases).unflatten(0, shape) if biases else None
    return torch.stack(weights).unflatten(0, shape), bias


def check_record(model: nn.Module, x: Tensor, layer: str) -> LayerRecord:
    model = model.double().eval()
    z = model(x)
    y = torch.zeros_like(z)
    problem = cs.Problem(model, (x, y), loss="mse")
    record = record_layers(problem, next(problem.batches()), layer, fixed_directions)[layer]
    weight, bias = expected_gradients(model, x, layer)
    ours = torch.einsum("bktm,btn->bkmn", record.errors, record.inputs)
    torch.testing.assert_close(ours, weight, rtol=1e-12, atol=1e-13)
    if bias is not None:
        torch.testing.assert_close(record.errors.sum(2), bias, rtol=1e-12, atol=1e-13)
    return record


CONVOLUTIONS = {
    "plain": (nn.Conv2d, {"kernel_size": 3}),
    "stride-padding": (nn.Conv2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "rectangle": (nn.Conv2d, {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 2)}),
    "dilation": (nn.Conv2d, {"kernel_size": 2, "dilation": (2, 3)}),
    "same-even": (nn.Conv2d, {"kernel_size": 4, "padding": "same"}),
    "same-dilated": (nn.Conv2d, {"kernel_size": (3, 2), "dilation": 2, "padding": "same"}),
    "valid": (nn.Conv2d, {"kernel_size": 3, "padding": "valid"}),
    "reflect": (nn.Conv2d, {"kernel_size": 3, "padding": (1, 2), "padding_mode": "reflect"}),
    "circular": (nn.Conv2d, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
    "groups": (nn.Conv2d, {"kernel_size": 3, "groups": 2, "padding": 1}),
    "depthwise": (nn.Conv2d, {"kernel_size": 3, "groups": 4}),
    "no-bias": (nn.Conv2d, {"kernel_size": 3, "bias": False}),
    "one-dimension": (nn.Conv1d, {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 2}),
    "three-dimensions": (nn.Conv3d, {"kernel_size": (2, 1, 3), "padding": (1, 0, 1)}),
}
SPATIAL = {nn.Conv1d: (7,), nn.Conv2d: (6, 7), nn.Conv3d: (4, 3, 5)}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    kind, settings = CONVOLUTIONS[name]
    x = torch.randn(3, 4, *SPATIAL[kind]).double()
    channels = 4
    layer = kind(4, channels, **settings).double()
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(layer(x)[0].numel(), 3))
    record = check_record(model, x, "0")
    positions = layer(x)[0, 0].numel() * layer.groups
    assert record.inputs.shape == (3, positions, layer.weight[0].numel())
    assert record.errors.shape == (3, K, positions, channels)


def test_linear_layer_and_batch_of_one() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    for samples in (1, 4):
        assert check_record(model, torch.randn(samples, 4).double(), "0").inputs.shape[1] == 1
    check_record(model, torch.randn(3, 4).double(), "2")


def test_linear_layer_at_many_positions() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 2))
    assert check_record(model, torch.randn(2, 3, 4).double(), "0").errors.shape == (2, K, 3, 5)


def test_positions_folded_into_the_batch() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.fc(x.flatten(0, 1))).unflatten(0, x.shape[:2]).sum(1)

    assert check_record(Folded(), torch.randn(2, 3, 4).double(), "fc").errors.shape == (2, K, 3, 5)


def test_in_place_activation_and_other_hooks() -> None:
    """The record is that of the layer's own output, whatever happens to it afterwards."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    model[0].register_forward_hook(lambda module, args, out: 2 * out)
    check_record(model, torch.randn(3, 4).double(), "0")


def test_several_layers_at_once() -> None:
    case = BY_NAME["conv-stride-padding"]
    problem = case.problem()
    batch = next(problem.batches())
    together = record_layers(problem, batch, None, fixed_directions)
    assert tuple(together) == linear_layers(problem)
    for name, record in together.items():
        alone = record_layers(problem, batch, name, fixed_directions)[name]
        torch.testing.assert_close(record.inputs, alone.inputs)
        torch.testing.assert_close(record.errors, alone.errors)


class Aside(nn.Module):
    """A layer that is called, but whose output is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.aside = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        return self.fc1(x)


class UsedTwice(nn.Module):
    """The weight of a layer that is called once and used once more by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x)) @ self.fc1.weight)


class NotCalled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(x)


class WithoutGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.fc1(x)
        return self.fc2(x)


class Centered(nn.Module):
    """Samples see each other through their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        return self.fc2(torch.tanh(x - x.mean(0)))


class SequenceFirst(nn.Module):
    """The layer sees ``[T, B, n]``."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x.transpose(0, 1))).sum(0)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


BATCH_NORM = lambda **settings: nn.Sequential(  # noqa: E731
    nn.Linear(4, 4), nn.BatchNorm1d(4, **settings), nn.Tanh(), nn.Linear(4, 3)
)


@pytest.mark.parametrize(
    ("make", "layer", "message"),
    [
        (UsedTwice, "fc1", "weight of layer 'fc1' is used more than once"),
        (ReusedModule, None, "used more than once|shares its weight"),
        (NotCalled, "spare", "'spare' is not used in the forward pass"),
        (Aside, None, "weight of layer 'aside' is not used for the output"),
        (Aside, "aside", "output does not depend on the chosen parameters"),
        (WithoutGraph, "fc1", "output of layer 'fc1' has no graph"),
        (Centered, "fc1", "samples of a batch see each other behind layer 'fc1'"),
        (lambda: BATCH_NORM(track_running_stats=False), "0", "batch norm needs mode='eval'"),
        (
            lambda: nn.Sequential(Doubled(4, 3)),
            "0",
            "'0' must be Conv1d.*Linear.*, got Doubled with",
        ),
        (lambda: BATCH_NORM(), "2", "'2' must be Conv1d.*Linear.*, got Tanh"),
        (lambda: BATCH_NORM(), "fc9", "'fc9' is not in the model; .* layers are 0, 1, 3"),
    ],
)
def test_refusals(make: Callable[[], nn.Module], layer: str | None, message: str) -> None:
    problem = cs.Problem(make().double(), (torch.randn(5, 4).double(), torch.arange(5) % 3))
    with pytest.raises(cs.CurvescopeError, match=message):
        record_layers(problem, next(problem.batches()), layer, fixed_directions)


def test_batch_statistics_are_refused_and_running_ones_are_not() -> None:
    data = (torch.randn(5, 4).double(), torch.arange(5) % 3)
    model = BATCH_NORM().double()
    problem = cs.Problem(model, data, mode="train")
    with pytest.raises(UnsupportedLayer, match="batch norm needs mode='eval'"):
        record_layers(problem, next(problem.batches()), "0", fixed_directions)
    check_record(model, data[0], "0")


@pytest.mark.parametrize("length", [2, 3, 5])
def test_samples_must_come_first(length: int) -> None:
    data = (torch.randn(3, length, 4).double(), torch.arange(3))
    problem = cs.Problem(SequenceFirst().double(), data)
    with pytest.raises(UnsupportedLayer, match="not its first dimension"):
        record_layers(problem, next(problem.batches()), "fc", fixed_directions)


def test_tied_weights_and_parametrizations_are_refused() -> None:
    tied = cs.Problem(
        TiedLanguageModel().double(), (torch.zeros(2, 3).long(), torch.zeros(2, 3).long())
    )
    linear = [n for n, m in tied.model.named_modules() if isinstance(m, nn.Linear)]
    with pytest.raises(UnsupportedLayer, match="shares its weight"):
        linear_layers(tied, linear)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))).double()
    problem = cs.Problem(normed, (torch.randn(2, 4).double(), torch.tensor([0, 1])))
    with pytest.raises(UnsupportedLayer, match="with a changed forward or weight"):
        linear_layers(problem, "0")
    with pytest.raises(cs.CurvescopeError, match=r"no Conv1d, .*Linear.* layer"):
        linear_layers(problem)


def test_wrong_directions() -> None:
    problem = BY_NAME["cross_entropy"].problem()
    with pytest.raises(cs.CurvescopeError, match=r"must return \[B, K, 3\] with B = 5, got \[5, 3"):
        record_layers(problem, next(problem.batches()), None, lambda z, y: z)


def test_nothing_is_left_on_the_model() -> None:
    problem = BY_NAME["cross_entropy"].problem()
    record_layers(problem, next(problem.batches()), None, fixed_directions)
    for module in problem.model.modules():
        assert not module._forward_hooks
    assert all(p.grad is None for p in problem.model.parameters())
