"""Models that keep results of their parameters from one pass to the next."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs


class Biased(nn.Module):
    """Keeps a function of a parameter: in a dictionary, as an attribute, or in a list."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.fc, self.bias = nn.Linear(3, 3), nn.Parameter(torch.randn(3))
        self.place, self.cache, self.single, self.several = place, {}, None, []
        self.scale, self.scales = torch.tensor(0.5).double(), {"out": torch.tensor(2.0).double()}
        self.calls, self.last = 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.fc(x)
        return self.scales.get("out", 1.0) * torch.tanh(self.scale * self.last + self.kept())

    def kept(self) -> Tensor:
        if self.place == "dictionary":
            if "bias" not in self.cache:
                self.cache["bias"] = self.bias.exp()
            return self.cache["bias"]
        if self.place == "attribute":
            if self.single is None:
                self.single = self.bias.exp()
            return self.single
        if not self.several:
            self.several.append(self.bias.exp())
        return self.several[0]

    def tensors(self) -> list[int]:
        return list(map(id, (*self.cache.values(), self.single, self.last)))


X, Y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double(), torch.arange(5) % 3
RUNS = {"no pass": None, "a pass": torch.enable_grad, "a pass without gradients": torch.no_grad}


def biased(place: str, run: str = "no pass") -> Biased:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Biased(place).double()
    if (mode := RUNS[run]) is not None:
        with mode():
            model(X[:2])
    return model


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("place", ["dictionary", "attribute"])
def test_what_a_pass_keeps_is_computed_anew_in_every_pass_and_left_as_it_was(
    place: str, run: str
) -> None:
    fresh = biased(place)
    parameters = list(fresh.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(fresh(X), Y), parameters, create_graph=True)
    g = torch.cat([s.flatten() for s in slopes])
    v = torch.randn(len(g), generator=torch.Generator().manual_seed(1)).double()
    Hv = torch.cat([h.flatten() for h in torch.autograd.grad(g @ v, parameters)])
    model = biased(place, run)
    before = model.tensors()
    problem = cs.Problem(model, (X, Y))
    for _ in range(2):
        torch.testing.assert_close(problem.gradient(), g.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(cs.Hessian(problem) @ v, Hv, rtol=1e-12, atol=1e-14)
    assert model.tensors() == before
    with torch.no_grad():
        model(X)  # fills it again
    torch.testing.assert_close(problem.gradient(), g.detach(), rtol=1e-12, atol=1e-14)


def test_what_cannot_be_emptied_is_refused() -> None:
    problem = cs.Problem(biased("list", "a pass"), (X, Y))
    v = torch.ones(problem.params.size).double()
    with pytest.raises(cs.CurvescopeError, match="keeps a tensor that an earlier pass computed"):
        problem.gradient()
    with pytest.raises(cs.CurvescopeError, match="keeps a tensor that an earlier pass computed"):
        cs.Hessian(problem) @ v


@pytest.mark.parametrize("place", ["dictionary", "attribute"])
def test_what_passes_leave_is_no_part_of_the_identity(place: str) -> None:
    models = [biased(place, run) for run in RUNS]
    problems = [cs.Problem(model, (X, Y)) for model in models]
    problems[0].gradient()
    assert len({problem.identity for problem in problems}) == 1
    assert models[2].last is not None  # it still lies there
    for change in (
        lambda m: m.scale.mul_(2),
        lambda m: m.scales.update(out=torch.tensor(3.0).double()),
        lambda m: m.scales.clear(),
        lambda m: setattr(m, "place", "list"),
    ):
        model = biased(place, "a pass")
        change(model)
        assert cs.Problem(model, (X, Y)).identity != problems[0].identity
