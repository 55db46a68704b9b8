"""Torch's recurrent layers and cells on the tape, against double backward of torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import curvescope as cs
from curvescope.engine.engine import Engine
from curvescope.record.batch import TapeBatch
from tests.conformance import random_block

SAMPLES, TIMES, INPUTS, WIDTH = 4, 5, 2, 3


class Net(nn.Module):
    """A layer whose results and last states all count; packed or not."""

    def __init__(self, layer: nn.RNNBase, *, packed: bool, learned: bool = False) -> None:
        super().__init__()
        self.layer, self.packed = layer, packed
        both = 1 + layer.bidirectional
        self.head = nn.Linear((layer.proj_size or WIDTH) * both, 3)
        self.first = (
            nn.Parameter(torch.randn(layer.num_layers * both, 1, WIDTH)) if learned else None
        )

    def forward(self, x: Tensor) -> Tensor:
        times = 0 if self.packed or self.layer.batch_first else 1
        x = x.transpose(0, 1) if times else x
        given: Any = x
        if self.packed:
            lengths = torch.tensor([3, 5, 1, 4])
            given = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states = None
        if self.first is not None:
            states = self.first.expand(-1, SAMPLES, -1).sin()
            states = (states, states.cos()) if isinstance(self.layer, nn.LSTM) else states
        out, states = self.layer(given, states)
        if self.packed:
            out, _ = pad_packed_sequence(out, batch_first=True)
        if times:
            out = out.transpose(0, 1)
        states = states if isinstance(states, tuple) else (states,)
        weights = torch.linspace(-1.0, 1.0, TIMES, dtype=x.dtype)[:, None]
        z = self.head((out * weights).sum(1))
        for state in states:
            z = z + state.sin().sum((0, 2))[:, None] * torch.arange(3, dtype=x.dtype)
        return z


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, TIMES, INPUTS, generator=g).double(), torch.tensor([0, 1, 2, 1])


def exact(model: nn.Module, names: list[str], V: Tensor) -> dict[str, Tensor]:
    """``H V`` and ``G V`` by torch alone."""
    X, y = data()
    chosen = [model.get_parameter(n) for n in names]
    z = model(X)

    def flat(pieces: Any) -> Tensor:
        pairs = zip(pieces, chosen, strict=True)
        return torch.cat([(torch.zeros_like(p) if t is None else t).flatten() for t, p in pairs])

    slope = flat(torch.autograd.grad(F.cross_entropy(z, y), chosen, create_graph=True))
    H = torch.stack([
        flat(torch.autograd.grad(slope @ v, chosen, retain_graph=True, allow_unused=True))
        for v in V.T
    ], 1)  # fmt: skip
    eye = torch.eye(z.numel(), dtype=z.dtype).view(-1, *z.shape)
    J = torch.stack([flat(torch.autograd.grad(z, chosen, e, retain_graph=True)) for e in eye])
    p = z.detach().softmax(1)
    B = torch.block_diag(*(torch.diag(q) - torch.outer(q, q) for q in p)) / len(y)
    return {"H": H, "G": J.T @ (B @ (J @ V))}


def check(model: nn.Module, params: Any = None) -> cs.Problem:
    """All products of a problem, and that they are made on a tape."""
    problem = cs.Problem(model, data(), params=params)
    V = random_block(problem.params.size, 5, torch.float64)
    expected = exact(model, list(problem.params.names), V)
    for keep in (True, False):
        for letter, make in (("H", cs.Hessian), ("G", cs.GaussNewton)):
            A, right = make(problem, keep=keep), expected[letter]
            torch.testing.assert_close(A @ V, right, rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(A @ V[:, 0], right[:, 0], rtol=1e-11, atol=1e-13)
    assert problem.companion(Engine)._linearizer.tapes("second order")
    return problem


def operators(problem: cs.Problem) -> int:
    """How many recurrent operators the forward pass consists of."""
    tape = TapeBatch(problem, next(iter(problem.data)))
    return sum("curvescope.recurrent" in step.name for step in tape._forward)


LAYERS: dict[str, Any] = {
    "LSTM": nn.LSTM, "GRU": nn.GRU, "tanh": nn.RNN,
    "ReLU": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": dict(batch_first=True),
    "two layers in both directions": dict(num_layers=2, bidirectional=True),
    "without biases": dict(num_layers=2, bias=False),
    "dropout": dict(num_layers=2, dropout=0.5, batch_first=True),
}


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, options: str, packed: bool) -> None:
    layer = LAYERS[name](INPUTS, WIDTH, **OPTIONS[options])
    problem = check(Net(layer, packed=packed).double().eval())
    assert operators(problem) == layer.num_layers * (1 + layer.bidirectional)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["weight_ih_l0", "weight_hh_l0", "bias_hh_l0", "weight_hh_l1"])
def test_one_parameter_alone(name: str, kind: str) -> None:
    layer = LAYERS[name](INPUTS, WIDTH, num_layers=2)
    check(Net(layer, packed=False).double(), f"layer.{kind}")


@pytest.mark.parametrize("name", LAYERS)
def test_learned_first_states(name: str) -> None:
    layer = LAYERS[name](INPUTS, WIDTH, bidirectional=True)
    model = Net(layer, packed=False, learned=True).double()
    check(model)
    check(model, "first")


def test_projections_are_taken_to_pieces_step_by_step() -> None:
    problem = check(Net(nn.LSTM(INPUTS, WIDTH, proj_size=2), packed=False).double())
    assert operators(problem) == 0


class Loop(nn.Module):
    """A cell in a loop that somebody wrote."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        states: Any = None
        for t in range(x.shape[1]):
            states = self.cell(x[:, t], states)
        return self.head(states[1] * states[0] if isinstance(states, tuple) else states)


@pytest.mark.parametrize(
    "cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *a: nn.RNNCell(*a, nonlinearity="relu")]
)
def test_cells(cell: Any) -> None:
    problem = check(Loop(cell(INPUTS, WIDTH)).double())
    assert operators(problem) == TIMES


@pytest.mark.parametrize("name", LAYERS)
def test_in_float32_where_torch_has_fused_kernels(name: str) -> None:
    model = Net(LAYERS[name](INPUTS, 64, num_layers=2), packed=False)
    model.head = nn.Linear(64, 3)
    X, y = data()
    V = torch.randn(sum(p.numel() for p in model.parameters()), 2)
    single = cs.Problem(model, (X.float(), y))
    ours = {make: make(single) @ V for make in (cs.Hessian, cs.GaussNewton)}
    value = float(single.value())
    double = cs.Problem(model.double(), (X, y))
    assert value == pytest.approx(float(double.value()), rel=1e-5)
    for make, result in ours.items():
        expected = make(double) @ V.double()
        assert float((result - expected).norm() / expected.norm()) < 1e-5


def test_only_recording_replaces_the_layers() -> None:
    layer = nn.LSTM(INPUTS, WIDTH).double()
    x = data()[0].transpose(0, 1)
    before = layer(x)[0]
    problem = cs.Problem(Net(layer, packed=False).double(), data())
    cs.Hessian(problem) @ torch.ones(problem.params.size).double()
    after = layer(x)[0]
    assert torch.equal(before, after)
    assert "recurrent" not in type(after.grad_fn).__name__
