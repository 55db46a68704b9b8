"""Do samples see each other? One answer for models that mix, reshape or reorder their rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.flatness.trace_gradient.independence import rows_per_sample
from curvescope.problem.independence import apart
from tests.problem.test_problem_leaves_no_trace import _assert_same, snapshot

N, T, D, C = 5, 3, 4, 2
DRAWS = 400


class Flattening(nn.Module):
    """Tokens of all samples as rows of one matrix, and attention among those of a sample."""

    def __init__(self, *, token_wise: bool) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(D, D), nn.Linear(D, C)
        self.token_wise = token_wise

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inside(x.reshape(-1, D))).reshape(-1, x.shape[1], D)
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
        h = self.inside(h.reshape(-1, D)).reshape(len(h), -1, D) if self.flat else self.inside(h)
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


class NotTheNext(nn.Module):
    """Every sample sees the one after the next: two samples alone would see themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(T * D, 4), nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x.flatten(1))
        return self.head(torch.relu(h + h.roll(2, 0)))


class Gate(nn.Module):
    """What the batch has in common, behind a gate that is closed at first."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(T * D, 4), nn.Linear(4, C)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x.flatten(1))
        return self.head(torch.relu(h + self.gate * h.mean(0)))


class OwnNorm(nn.Module):
    """A norm of the user's own, with the mean of the batch in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(T * D, 4), nn.Linear(4, C)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x.flatten(1))
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return self.head(torch.relu(h - (h.mean(0) if self.training else self.mean)))


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
    "not-the-next": (NotTheNext, ()),
    "gate": (Gate, ()),
    "own-norm": (OwnNorm, ()),
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
    # A penalty by itself runs the model without dropout; norms alone stay in training mode.
    model = model.eval() if name == "own-norm" else model
    assert abs(float(values.mean()) - exact_trace(model, X)) < 4 * spread + 1e-9


def mean_penalty(model: nn.Module, X: Tensor) -> tuple[float, float]:
    """Over many draws, as a training gets it, with the standard error."""
    g = torch.Generator().manual_seed(4)
    regularizer = cs.TraceRegularizer("ggn", weight=1.0, loss="mse", generator=g)
    y = torch.zeros(len(X), C, dtype=torch.float64)
    values = torch.stack(
        [regularizer.objective(model, X, y).penalty.detach() for _ in range(DRAWS)]
    )
    return float(values.mean()), float(values.std()) / DRAWS**0.5


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("flattening-token-wise",)])
def test_the_penalty_of_a_training_is_unbiased(name: str) -> None:
    model, X = build(name), inputs()
    mean, spread = mean_penalty(model, X)
    assert abs(mean - exact_trace(model, X)) < 4 * spread + 1e-9


def test_a_gate_that_opens_during_a_training() -> None:
    model, X = build("gate"), inputs()
    mean_penalty(model, X)
    with torch.no_grad():
        model.gate.fill_(1.0)
    mean, spread = mean_penalty(model, X)
    assert abs(mean - exact_trace(model, X)) < 4 * spread


@pytest.mark.parametrize("name", ["positions-first-flat", "flattening"])
def test_other_lengths_and_batches_than_those_tried_out(name: str) -> None:
    model = build(name)
    g = torch.Generator().manual_seed(6)
    for samples, length in ((5, 1), (2, 3), (5, 3), (7, 3)):
        X = torch.randn(samples, length, D, generator=g, dtype=torch.float64)
        mean, spread = mean_penalty(model, X)
        assert abs(mean - exact_trace(model, X)) < 4 * spread


def test_a_trial_leaves_no_trace() -> None:
    for name in ("own-norm", "gate"):
        model, X = build(name), inputs()
        before = snapshot(model)
        rows_per_sample(model, X)
        after = snapshot(model)
        for key, value in before.items():
            _assert_same(key, after[key], value)


def test_dropout_keeps_samples_apart() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(T * D, 4), nn.Dropout(0.5), nn.Linear(4, C))
    assert rows_per_sample(model.double().train(), inputs()) == (1, 1)


@pytest.mark.parametrize("name", MODELS)
def test_independent_samples_of_a_problem(name: str) -> None:
    model, X = build(name).eval(), inputs()
    if name == "flattening-token-wise":
        pytest.skip("its targets are tokens")
    problem = cs.Problem(model, (X, torch.zeros(N, C, dtype=torch.float64)), loss="mse")
    expected = name not in ("over-the-batch", "detached", "not-the-next")
    assert problem.samples_apart(next(problem.batches())) is expected


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
