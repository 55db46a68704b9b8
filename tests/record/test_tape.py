"""Which tangents a program may write over."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy


class TwoReaders(nn.Module):
    """A pre-activation that is read by a gate and beside it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second, self.kind = nn.Linear(4, 6), nn.Linear(6, 3), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if self.kind == "sum":
            return self.second(h.relu() + h)
        if self.kind == "twice":
            return self.second(h.relu() * (-h).relu() + (2 * h).relu())
        if self.kind == "view":
            return self.second(h.view(-1, 2, 3).relu().flatten(1) + h)
        return self.second(h.relu())


@pytest.mark.parametrize("kind", ["sum", "twice", "view", "plain"])
@pytest.mark.parametrize("columns", [1, 3])
def test_gates_do_not_write_over_what_others_read(kind: str, columns: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TwoReaders(kind).double()
    g = torch.Generator().manual_seed(0)
    X = torch.randn(7, 4, generator=g, dtype=torch.float64)
    data = (X, torch.arange(7) % 3)
    H = Hessian(Problem(model, data), keep=True)
    dense = Reference(model, [data], CrossEntropy()).hessian()
    V = torch.randn(H.shape[0], columns, generator=g, dtype=torch.float64)
    expected = dense @ V
    for _ in range(2):  # the second time finds the first one's memory
        assert ((H @ V) - expected).abs().max() <= 1e-12 * expected.abs().max()
        single = H @ V[:, 0]
        assert (single - expected[:, 0]).abs().max() <= 1e-12 * expected.abs().max()


def test_a_bias_alone_is_not_written_over() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TwoReaders("plain").double()
    model.first.weight.requires_grad_(False)
    g = torch.Generator().manual_seed(0)
    X = torch.randn(7, 4, generator=g, dtype=torch.float64)
    data = (X, torch.arange(7) % 3)
    H = Hessian(Problem(model, data), keep=True)
    dense = Reference(model, [data], CrossEntropy()).hessian()
    V = torch.randn(H.shape[0], 2, generator=g, dtype=torch.float64)
    before = V.clone()
    assert ((H @ V) - dense @ V).abs().max() <= 1e-12 * dense.abs().max()
    assert torch.equal(V, before)
