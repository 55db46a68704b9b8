"""Gradients by parameters that a streamed product does not compute: what it gives is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import curvescope as cs
from curvescope.problem.losses import CrossEntropy
from curvescope.record import live, unread
from tests.tolerances import REORDERED


class Shared(nn.Module):
    """Weights used twice, transposed, as both factors of a product, as a table, by a formula."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table, self.square = nn.Embedding(5, 4), nn.Linear(4, 4)
        self.normed, self.plain = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))
        self.norm, self.conv = nn.LayerNorm(4), nn.Conv1d(3, 3, 1)
        self.lstm, self.kind = nn.LSTM(4, 4, batch_first=True), kind

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, 3]`` to ``[B, 3, 5]``."""
        x = self.norm(self.conv(self.table(tokens)))
        if self.kind == "checkpoint":
            x = checkpoint(self.square, x, use_reentrant=False)
        if self.kind == "copies":
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
                x = self.square(x)
        x = x + self.square(torch.tanh(self.square(x))) @ (self.plain @ self.plain.t())
        x = self.lstm(F.linear(x, self.normed / self.normed.norm()) @ self.plain.mT)[0]
        if self.kind == "hook":
            self.square.weight.register_hook(torch.sin)
        return x @ self.table.weight.t()


@pytest.mark.parametrize(
    ("kind", "left_out"),
    # table twice, norm, convolution, square twice, plain once, recurrent and input weights
    [("plain", 9), ("hook", 7), ("checkpoint", 0), ("copies", 0), ("anomaly", 0)],
)
def test_products_are_those_of_double_backward(
    kind: str, left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Shared(kind).double()
    X, y = torch.randint(0, 5, (2, 3)), torch.randint(0, 5, (2, 3))
    problem = cs.Problem(model, (X, y), loss=CrossEntropy(axis=-1))
    H, v = cs.Hessian(problem, keep=False), torch.randn(problem.params.size).double()
    original, answers = unread.without_unread, []

    def noted(*given: Any) -> Any:
        answers.append(original(*given))
        return answers[-1]

    with torch.autograd.set_detect_anomaly(kind == "anomaly", check_nan=True):
        H @ v  # the first one finds out how many samples fit
        monkeypatch.setattr(live, "without_unread", noted)
        product = H @ v
    assert sum(answer is not None for answer in answers) == left_out
    if kind == "hook":  # which torch would apply to the second derivative as well
        wanted = cs.Hessian(problem, keep=True) @ v
    else:
        params = list(model.parameters())
        loss = F.cross_entropy(model(X).flatten(0, 1), y.flatten())
        gradient = torch.autograd.grad(loss, params, create_graph=True)
        along = torch.cat([g.flatten() for g in gradient]) @ v
        wanted = torch.cat([g.flatten() for g in torch.autograd.grad(along, params)])
    assert (product - wanted).norm() < REORDERED[torch.float64] * wanted.norm()
