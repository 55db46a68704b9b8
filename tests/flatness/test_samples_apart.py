"""Do samples see each other? One answer for models that mix, reshape or reorder their rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.flatness.trace_gradient.independence import rows_per_sample
from curvescope.record.samples import apart, independent

N, T, D, C = 5, 3, 4, 2
DRAWS = 400


class Flattening(nn.Module):
    """Tokens of all samples as rows of one matrix, and attention among those of a sample."""

    def __init__(self, *, token_wise: bool) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(D, D), nn.Linear(D, C)
        self.token_wise = token_wise

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inside(x.reshape(-1, D))).reshape(-1, T, D)
        weights = (h @ h.detach().mT).softmax(-1).detach()
        h = weights @ h
        return self.head(h.reshape(-1, D)) if self.token_wise else self.head(h.sum(1))


class PositionsFirst(nn.Module):
    """The same with the sequence in the first dimension, flattened or not."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.inside, self.head, self.flat = nn.Linear(D, D), nn.Linear(D, C), flat

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(0, 1)  # [T, N, D]
        h = self.inside(h.reshape(-1, D)).reshape(T, -1, D) if self.flat else self.inside(h)
        return self.head(torch.relu(h).sum(0))


class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.norm, self.head = nn.Linear(T * D, 4), nn.BatchNorm1d(4), nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.inside(x.flatten(1)))))


class OverTheBatch(nn.Module):
    """Attention of every sample to all of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(T * D, 4), nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x.flatten(1))
        return self.head((h @ h.mT).softmax(1) @ h)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(D, 2, batch_first=True), nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x, x, x, need_weights=False)[0].sum(1))


class Constant(nn.Module):
    """Rows whose inputs are the same for all samples: only cotangents tell whose they are."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(D))
        self.inside, self.head = nn.Linear(D, D), nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.inside(self.query.expand(T * len(x), D))
        return self.head((rows.reshape(T, len(x), D) * x.transpose(0, 1)).sum(0))


class Detached(nn.Module):
    """The mean of the batch taken away where no gradient goes."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(T * D, 4), nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x.flatten(1))
        return self.head(h - h.detach().mean(0))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "flattening": (lambda: Flattening(token_wise=False), (T, 1)),
    "flattening-token-wise": (lambda: Flattening(token_wise=True), (T, T)),
    "positions-first": (lambda: PositionsFirst(flat=False), (0, 1)),
    "positions-first-flat": (lambda: PositionsFirst(flat=True), (0, 1)),
    "batch-norm": (BatchNorm, ()),
    "over-the-batch": (OverTheBatch, ()),
    "attention": (Attention, (1,)),
    "constant": (Constant, (0, 1)),
    "detached": (Detached, ()),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(2)
    return MODELS[name][0]().double().train()


def inputs() -> Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.randn(N, T, D, generator=g, dtype=torch.float64)


def exact_trace(model: nn.Module, X: Tensor) -> float:
    """``tr G`` of the mean squared error, ``(2/entries) ‖∂z/∂w‖²`` by autograd, row by row."""
    z = model(X)
    total = 0.0
    for entry in z.flatten():
        g = torch.autograd.grad(entry, list(model.parameters()), retain_graph=True,
                                allow_unused=True, materialize_grads=True)  # fmt: skip
        total += sum(float(t.square().sum()) for t in g)
    return 2 * total / z.numel()


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_samples_are_known(name: str) -> None:
    rows = rows_per_sample(build(name), inputs())
    if name == "attention":  # its projections are no layers of their own
        assert rows[-1] == 1
    else:
        assert rows == MODELS[name][1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("probes", [1, 2])  # two: every output by itself
def test_the_penalty_is_unbiased(name: str, probes: int) -> None:
    model, X = build(name), inputs()
    rows = len(model(X))
    g = torch.Generator().manual_seed(4)
    regularizer = cs.TraceRegularizer("ggn", weight=1.0, loss="mse", generator=g, probes=probes)
    values = torch.stack(
        [
            regularizer(model, X, torch.zeros(rows, C, dtype=torch.float64)).detach()
            for _ in range(DRAWS)
        ]
    )
    spread = float(values.std()) / DRAWS**0.5
    assert abs(float(values.mean()) - exact_trace(model, X)) < 4 * spread + 1e-9


@pytest.mark.parametrize("name", MODELS)
def test_independent_samples_of_a_problem(name: str) -> None:
    model, X = build(name).eval(), inputs()
    if name == "flattening-token-wise":
        pytest.skip("its targets are tokens")
    problem = cs.Problem(model, (X, torch.zeros(N, C, dtype=torch.float64)), loss="mse")
    expected = name not in ("over-the-batch", "detached")
    assert independent(problem, next(problem.batches())) is expected


def test_one_sample_cannot_tell() -> None:
    assert apart(nn.Linear(2, 2), torch.ones(1, 2)) is None
    assert apart(nn.Linear(2, 2), torch.ones(2, 2)) is True
    assert apart(nn.BatchNorm1d(2).train(), torch.eye(2)) is False  # refuses a single sample
    assert apart(lambda x: x.flip(0), torch.eye(4)) is False
    assert apart(lambda x: x + torch.arange(len(x))[:, None], torch.eye(4)) is False


def test_out_of_memory_is_no_answer() -> None:
    def run(x: Tensor) -> Tensor:
        if len(x) < 4:
            raise torch.OutOfMemoryError("too large")
        return x

    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        apart(run, torch.eye(4))
