"""Rows of batch norms against autograd, one sample and direction at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.gram import GramForm
from curvescope.problem import Problem
from curvescope.record.extended import class_directions
from curvescope.record.norms import is_fixed_norm, record_norms
from curvescope.record.selection import UnsupportedLayer


def convolutional(generator: torch.Generator) -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4),
        nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False),
    ).double()  # fmt: skip
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator).double())
    return model.eval()


@pytest.fixture
def problem() -> Problem:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(7, 2, 5, 5, generator=g).double()
    return Problem(convolutional(g), (X, torch.arange(7) % 3))


def each_output(z: Tensor, y: Tensor) -> Tensor:
    return torch.eye(3, dtype=z.dtype).expand(len(z), 3, 3)


def test_every_sample_and_direction_is_what_autograd_says(problem: Problem) -> None:
    (batch,) = problem.batches()
    found = record_norms(problem, batch, ["1", "5"], each_output)
    variables = problem.variables()
    with problem.evaluation():
        z = problem.output(variables, batch)
    for name, (scale, shift) in found.items():
        own = [variables[f"{name}.weight"], variables[f"{name}.bias"]]
        for b in range(7):
            for k in range(3):
                expected = torch.autograd.grad(z[b, k], own, retain_graph=True)
                torch.testing.assert_close(scale[b, k], expected[0])
                torch.testing.assert_close(shift[b, k], expected[1])


def test_which_norms_are_fixed(problem: Problem) -> None:
    assert [n for n in ("0", "1", "5", "8") if is_fixed_norm(problem, n)] == ["1", "5"]
    moving = Problem(problem.model, problem.data, mode="train")
    assert not is_fixed_norm(moving, "1")


def test_the_gram_form_takes_no_pass_for_each_row(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = GramForm(problem, class_directions)
    monkeypatch.setattr(type(form.source), "_written", None)
    values = torch.linalg.eigvalsh(form.matrix())
    dense = torch.linalg.eigvalsh(GaussNewton(problem).dense())
    torch.testing.assert_close(values[-14:], dense[-14:], rtol=1e-9, atol=1e-12 * float(dense[-1]))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(2, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        once: Tensor = self.norm(self.linear(x))
        return self.norm(torch.tanh(once))  # type: ignore[no-any-return]


def test_a_norm_that_is_used_twice_is_left_to_autograd() -> None:
    g = torch.Generator().manual_seed(1)
    model = Twice().double().eval()
    X = torch.randn(5, 2, generator=g).double()
    twice = Problem(model, (X, torch.arange(5) % 3))
    (batch,) = twice.batches()
    with pytest.raises(UnsupportedLayer, match="used more than once"):
        record_norms(twice, batch, ["norm"], each_output)
    values = torch.linalg.eigvalsh(GramForm(twice, class_directions).matrix())
    dense = torch.linalg.eigvalsh(GaussNewton(twice).dense())
    torch.testing.assert_close(values[-10:], dense[-10:], rtol=1e-9, atol=1e-12)
