"""Models that keep results of their parameters from one pass to the next."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs


class Biased(nn.Module):
    """Keeps a function of a parameter, in a dictionary or as an attribute."""

    def __init__(self, *, dictionary: bool) -> None:
        super().__init__()
        self.fc, self.bias = nn.Linear(3, 3), nn.Parameter(torch.randn(3))
        self.dictionary, self.cache, self.single = dictionary, {}, None

    def forward(self, x: Tensor) -> Tensor:
        if self.dictionary:
            if "bias" not in self.cache:
                self.cache["bias"] = self.bias.exp()
            return torch.tanh(self.fc(x) + self.cache["bias"])
        if self.single is None:
            self.single = self.bias.exp()
        return torch.tanh(self.fc(x) + self.single)


X, Y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double(), torch.arange(5) % 3


@pytest.mark.parametrize("ran", [False, True])
def test_a_dictionary_is_filled_anew_in_every_pass_and_left_as_it_was(ran: bool) -> None:
    model = Biased(dictionary=True).double()
    parameters = list(model.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(model(X), Y), parameters, create_graph=True)
    g = torch.cat([s.flatten() for s in slopes])
    v = torch.randn(len(g), generator=torch.Generator().manual_seed(1)).double()
    Hv = torch.cat([h.flatten() for h in torch.autograd.grad(g @ v, parameters)])
    if not ran:
        model.cache.clear()
    before = dict(model.cache)
    problem = cs.Problem(model, (X, Y))
    for _ in range(2):
        torch.testing.assert_close(problem.gradient(), g.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(cs.Hessian(problem) @ v, Hv, rtol=1e-12, atol=1e-14)
    assert {k: id(t) for k, t in model.cache.items()} == {k: id(t) for k, t in before.items()}


def test_what_cannot_be_emptied_is_refused() -> None:
    model = Biased(dictionary=False).double()
    model(X)
    problem = cs.Problem(model, (X, Y))
    v = torch.ones(problem.params.size).double()
    with pytest.raises(cs.CurvescopeError, match="keeps a tensor that an earlier pass computed"):
        problem.gradient()
    with pytest.raises(cs.CurvescopeError, match="keeps a tensor that an earlier pass computed"):
        cs.Hessian(problem) @ v
