"""Kinds of layers: the faster ways of each against what follows from its rows and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from curvescope.layers import LayerKind, kind_of, kinds, mirror, registered, watched_calls

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear-positions": (lambda: nn.Linear(4, 3), (5, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (4, 7)),
    "conv1d-groups": (lambda: nn.Conv1d(4, 6, 3, groups=2), (4, 7)),
    "conv2d-stride": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 6, 5)),
    "conv2d-many-positions": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 9, 9)),
    "conv2d-depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (4, 4, 4)),
    "conv2d-reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 3, 4, 3)),
}


def made(name: str) -> tuple[LayerKind, Tensor, Tensor]:
    """A layer, an input of three samples and a cotangent of its output."""
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    module = build().double()
    x = torch.randn(3, *shape, dtype=torch.float64)
    kind = kind_of(module)
    assert kind is not None
    return kind, x, torch.randn_like(module(x))


@pytest.mark.parametrize("name", LAYERS)
def test_rows_and_errors_give_the_gradient_and_the_output(name: str) -> None:
    kind, x, e = made(name)
    rows, errors = kind.rows(x, 3), kind.errors(e, 3)
    y = kind.module(x)
    parts = torch.autograd.grad(y, [kind.weight, kind.module.bias], e)
    torch.testing.assert_close(torch.einsum("btm,btn->mn", errors, rows), parts[0].flatten(1))
    torch.testing.assert_close(errors.sum((0, 1)), parts[1])
    if kind.groups == 1:  # otherwise a row meets the channels of its group alone
        outputs = rows @ kind.matrix.T + kind.module.bias
        torch.testing.assert_close(outputs, kind.errors(y, 3))
    assert (errors.shape[2], rows.shape[2]) == kind.matrix_shape
    assert kind.neurons(y) == kind.matrix_shape[0]


@pytest.mark.parametrize("name", LAYERS)
def test_moments_are_those_of_rows_and_errors(name: str) -> None:
    kind, x, e = made(name)
    m, n = kind.matrix_shape
    positions = kind.rows(x, 3).shape[1]
    found = []
    for way in (type(kind), LayerKind):
        inputs, first = torch.zeros(n, n).double(), torch.zeros(n, positions).double()
        errors = torch.zeros(m, m).double()
        way.add_input_moments(kind, x, 3, inputs, first)
        way.add_error_moment(kind, e, 3, errors)
        found.append((mirror(inputs), first, mirror(errors)))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain)


def test_every_registered_class_has_its_kind() -> None:
    modules = [nn.Linear(2, 2), nn.Conv1d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.Conv3d(1, 1, 1)]
    assert {type(module) for module in modules} <= set(kinds())
    assert all(kind_of(module) is not None for module in modules)
    assert kind_of(nn.LazyLinear(2).cls_to_become(2, 2)) is not None  # type: ignore[misc]
    for other in (nn.ReLU(), nn.Bilinear(2, 2, 2), nn.ConvTranspose1d(1, 1, 1), nn.LSTM(2, 2)):
        assert kind_of(other) is None


def test_what_computes_something_else_is_of_no_kind() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Padded(nn.Conv1d):
        def _conv_forward(self, x: Tensor, *rest: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * super()._conv_forward(x, *rest)

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    for module in (Doubled(2, 2), Padded(1, 1, 1), normed):
        assert kind_of(module) is None
        assert registered(module) is not None


def test_calls_are_seen_before_other_hooks_and_in_place_functions() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2))
    model[0].register_forward_hook(lambda module, args, out: out + 100)
    seen: list[tuple[str, Tensor, Tensor]] = []
    X = torch.randn(3, 2)
    with watched_calls({"0": model[0]}, lambda name, x, y: seen.append((name, x, y.clone()))):
        model(X)
        model[0](input=X)
    model(X)
    assert [name for name, *_ in seen] == ["0", "0"]
    for _, x, y in seen:
        assert x is X
        torch.testing.assert_close(y, nn.functional.linear(X, model[0].weight, model[0].bias))
