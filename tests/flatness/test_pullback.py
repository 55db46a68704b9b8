"""Pulled-back cotangents against dense traces and their derivatives, in every case of the table."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from curvescope.flatness.trace_gradient.affine import functions_of_piecewise_affine
from curvescope.flatness.trace_gradient.batch_norm import batch_norm
from curvescope.flatness.trace_gradient.capture import Capture
from curvescope.flatness.trace_gradient.convolution import Settings
from curvescope.flatness.trace_gradient.correlation import correlate
from curvescope.flatness.trace_gradient.forward import frozen_calls, samples_of
from curvescope.flatness.trace_gradient.independence import rows_per_sample
from curvescope.flatness.trace_gradient.pullback import Folding, squared_gradients
from curvescope.flatness.trace_gradient.signs import Signs
from curvescope.problem.losses import as_loss
from tests.cases import CASES, Case, build
from tests.flatness.dense import flat_grad, trace_of_gauss_newton
from tests.reference.curvature import Reference

STANDARD = [c for c in CASES if c.params is None and as_loss(c.loss).closed_form]
EXACT = 1e-10


def first_batch(case: Case) -> tuple[nn.Module, list[tuple[object, Tensor]]]:
    """The model in the case's mode, and a few samples."""
    model = case.model().eval()
    if case.mode == "train":
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.train()
    return model, case.data()[:1]


def units(shape: tuple[int, int]) -> list[Tensor]:
    """Every unit vector in the space of all outputs of the batch."""
    return list(torch.eye(shape[0] * shape[1], dtype=torch.float64).reshape(-1, *shape))


def exact_trace(model: nn.Module, X: object, y: Tensor, loss: object) -> tuple[Tensor, Capture]:
    """``tr G`` from all unit vectors, without folding."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    attention = sdpa_kernel(SDPBackend.MATH)
    with attention, frozen_calls(model) as call, Capture(parameters, second_order=True) as capture:
        z = call(X)
    capture.separate(samples_of(X), rows_per_sample(model, X))
    root = as_loss(loss).probe(z, y)
    fold = Folding(Signs(torch.Generator()), whole=True)
    total = torch.zeros((), dtype=z.dtype)
    for e in units(root.shape):
        by_sample, rest = squared_gradients(capture, z, root(e), fold, create_graph=True)
        total = total + by_sample.sum() + rest
    return total / root.weight, capture


@pytest.mark.parametrize("case", STANDARD, ids=lambda case: case.name)
def test_trace_and_its_gradient(case: Case) -> None:
    model, batches = first_batch(case)
    reference = Reference(
        build(case.make_reference_model or case.make_model, torch.float64),
        batches,
        case.reference_loss,
        mode=case.mode,
        per_batch=case.per_batch,
    )
    expected = trace_of_gauss_newton(reference)
    found, _ = exact_trace(model, *batches[0], case.loss)
    assert found.item() == pytest.approx(expected.item(), rel=EXACT, abs=EXACT)
    parameters = [p for p in model.parameters() if p.requires_grad]
    slope = torch.cat(
        [
            g.reshape(-1)
            for g in torch.autograd.grad(
                found, parameters, allow_unused=True, materialize_grads=True
            )
        ]
    )
    dense = flat_grad(reference, expected)
    scale = max(float(dense.norm()), float(expected.detach()))
    assert float((slope - dense).norm()) <= EXACT * scale


SETTINGS = [
    # dims, size, kernel, stride, padding, dilation, groups
    (1, 9, 3, 1, 0, 1, 1),
    (1, 7, 2, 3, 1, 1, 2),
    (2, 6, 3, 1, 1, 1, 1),
    (2, 7, 3, 2, 2, 2, 2),
    (2, 8, 1, 3, 0, 1, 1),
    (2, 5, 2, 1, 4, 1, 1),
    (3, 4, 2, 2, 1, 1, 2),
]


@pytest.mark.parametrize("case", SETTINGS)
def test_weight_gradients_of_single_samples(case: tuple[int, ...]) -> None:
    """Squared norms of ``δ_n ⋆ x_n`` and their derivatives, against autograd's own gradients."""
    dims, size, kernel, stride, padding, dilation, groups = case
    g = torch.Generator().manual_seed(0)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](
        4, 6, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups
    ).double()
    x = torch.randn(3, 4, *(size,) * dims, generator=g, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    delta = torch.randn(y.shape, generator=g, dtype=torch.float64, requires_grad=True)
    settings = Settings((stride,) * dims, (padding,) * dims, (dilation,) * dims, groups)
    gradients = correlate(delta, x, layer.weight.shape[2:], settings, apart=True)
    ours = gradients.square().flatten(1).sum(1)
    expected = []
    for n in range(3):
        (w,) = torch.autograd.grad(
            layer(x[n : n + 1]), layer.weight, delta[n : n + 1], create_graph=True
        )
        expected.append(w.square().sum())
    torch.testing.assert_close(ours, torch.stack(expected))
    for a, b in zip(
        torch.autograd.grad(ours.sum(), (x, delta)),
        torch.autograd.grad(torch.stack(expected).sum(), (x, delta)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("case", SETTINGS)
def test_weight_gradients_of_the_whole_batch(case: tuple[int, ...]) -> None:
    """Their sum over the samples and its derivatives, against those of the single ones."""
    dims, size, kernel, stride, padding, dilation, groups = case
    g = torch.Generator().manual_seed(0)
    settings = Settings((stride,) * dims, (padding,) * dims, (dilation,) * dims, groups)
    x = torch.randn(3, 4, *(size,) * dims, generator=g, dtype=torch.float64, requires_grad=True)
    y = settings.forward(x, x.new_zeros(6, 4 // groups, *(kernel,) * dims))
    delta = torch.randn(y.shape, generator=g, dtype=torch.float64, requires_grad=True)
    found = []
    for apart in (True, False):
        gradient = correlate(delta, x, (kernel,) * dims, settings, apart=apart)
        total = gradient.sum(0) if apart else gradient
        found.append((total, *torch.autograd.grad(total.square().sum(), (delta, x))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 2)])
@pytest.mark.parametrize("scales", [None, (1.5, -0.5, 2.0), (0.0, 1.0, 0.0)])
def test_batch_norm_has_torchs_second_derivatives(
    shape: tuple[int, ...], scales: tuple[float, ...] | None
) -> None:
    """Of all three results of the backward pass, also where a channel's scale is zero."""
    g = torch.Generator().manual_seed(0)
    x, delta, a = torch.randn(3, *shape, generator=g, dtype=torch.float64)
    x, delta = (3 * x + 1).requires_grad_(), delta.requires_grad_()
    weight = bias = None
    if scales is not None:
        weight = torch.tensor(scales, dtype=torch.float64, requires_grad=True)
        bias = torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_()
    given = [t for t in (x, weight, bias) if t is not None]
    found = []
    for norm in (batch_norm, F.batch_norm):
        y = torch.relu(norm(x, None, None, weight, bias, True))
        slopes = torch.autograd.grad(y, given, delta, create_graph=True)
        total = (a * slopes[0]).sum() + sum(s.square().sum() for s in slopes[1:])
        seconds = torch.autograd.grad(total, [delta, *given], materialize_grads=True)
        found.append((y, *slopes, *seconds))
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding: str) -> None:
    for kernel in (3, 4):  # an even filter is padded unequally, and left to autograd
        model = nn.Sequential(nn.Conv1d(1, 2, kernel, padding=padding), nn.Flatten()).double()
        parameters = list(model.parameters())
        with warnings.catch_warnings(), Capture(parameters, second_order=True) as capture:
            warnings.filterwarnings("ignore", message="Using padding='same' with even kernel")
            model(torch.ones(2, 1, 6, dtype=torch.float64))
        known = kernel == 3 or padding == "valid"
        assert len(capture.layers()) == int(known)
        assert len(capture.others()) == (0 if known else 2)


class Behind(nn.Module):
    """Something behind a linear layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 3).double(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


CONSTANT = torch.randn(2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "relu": (torch.relu, True),
    "linear": (lambda h: 2 * h - h.mean(1, keepdim=True) / 3, True),
    "times a constant": (lambda h: h * CONSTANT, True),
    "leaky relu": (lambda h: nn.functional.leaky_relu(h).flip(1), True),
    "hardtanh": (nn.functional.hardtanh, True),
    "max-pooling": (lambda h: nn.functional.max_pool1d(h, 2), True),
    "a step of the batch": (lambda h: (h - h.mean(0)).abs(), True),
    "a square": (lambda h: h * h, False),
    "a quotient": (lambda h: CONSTANT / h, False),
    "tanh": (torch.tanh, False),
    "softmax": (lambda h: h.softmax(1), False),
    "exp": (torch.exp, False),
    "a product over the batch": (lambda h: h @ h.T, False),
    "random": (lambda h: nn.functional.dropout(h, 0.5), False),  # cannot be recorded
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_which_models_are_piecewise_affine(name: str) -> None:
    """It decides between tr H and tr G."""
    function, affine = FUNCTIONS[name]
    model = Behind(function)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        y = torch.zeros_like(model(x))
        found = functions_of_piecewise_affine(model, as_loss("mse"), x, y)
    assert (found is not None) == affine


def test_weights_used_twice_and_statistics_of_the_batch_are_not_piecewise_affine() -> None:
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def affine(model: nn.Module) -> bool:
        y = torch.zeros_like(model(x).detach())
        return functions_of_piecewise_affine(model, as_loss("mse"), x, y) is not None

    twice = nn.Linear(5, 5)
    assert not affine(nn.Sequential(twice, nn.ReLU(), twice).double())
    assert affine(nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5)).double())
    for norm in (nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)):
        model = nn.Sequential(nn.Linear(5, 5), norm, nn.Linear(5, 5)).double()
        assert not affine(model.train())
        assert affine(model.eval())
    assert not affine(nn.Sequential(nn.Linear(5, 5), nn.InstanceNorm1d(3)).double().eval())


def test_samples_that_see_each_other_are_found_out() -> None:
    class SequenceFirst(nn.Module):
        """A layer whose input happens to have as many places as there are samples."""

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.fc(x.transpose(0, 1)).mean(0))

    X = torch.randn(4, 4, 2, generator=torch.Generator().manual_seed(0))
    assert rows_per_sample(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), X[0]) == (1,)
    assert rows_per_sample(SequenceFirst(), X[:3]) == (0, 1)  # three samples, four places
    assert rows_per_sample(SequenceFirst(), X) == (0, 1)
    softmax = nn.Sequential(nn.Linear(2, 2), nn.Softmax(0))
    assert rows_per_sample(softmax, X[0]) == ()
    norm = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert rows_per_sample(norm.train(), X[0]) == ()
    assert rows_per_sample(norm.eval(), X[0]) == (1,)
    assert rows_per_sample(norm.train(), X[0]) == ()
