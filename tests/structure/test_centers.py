"""Predicted logit centers against their formula, and against centers where they must agree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.operators.hessian import Hessian
from curvescope.structure import logit_centers, overlap
from tests.cases import classes, convert
from tests.structure.test_clustering import by_definition

F64 = torch.float64


def chain(*, gates: bool, bias: bool = True) -> nn.Sequential:
    gate = nn.ReLU if gates else nn.Identity
    return nn.Sequential(
        nn.Linear(4, 7, bias=bias), gate(), nn.Linear(7, 6, bias=bias), gate(),
        nn.Linear(6, 3, bias=bias),
    ).double()  # fmt: skip


def data(labels: list[int]) -> tuple[Tensor, Tensor]:
    X = torch.randn(len(labels), 4, dtype=F64, generator=torch.Generator().manual_seed(5)) + 0.5
    return X, torch.tensor(labels)


@pytest.mark.parametrize("layer", ["0", "2", "4"])
@pytest.mark.parametrize("labels", [[0, 1, 2] * 4, [0, 0, 0, 0, 0, 1, 1, 2], [0, 2, 2, 0, 2]])
def test_both_sides_against_sums_over_samples(layer: str, labels: list[int]) -> None:
    """Balanced, unbalanced, and without samples of a class."""
    model, (X, y) = chain(gates=True), data(labels)
    found = logit_centers(cs.Problem(model, (X, y), batch_size=5), layer)
    there = sorted(set(labels))
    delta, gamma = by_definition(model, X, y, layer)
    torch.testing.assert_close(found.weight.measured, delta[there].mean(0))
    torch.testing.assert_close(found.output.measured, gamma[there].mean(0))
    k = ["0", "2", "4"].index(layer)
    S = torch.eye(3, dtype=F64)
    for name in ["4", "2"][: 2 - k]:
        S = S @ model.get_submodule(name).weight.detach() / 2  # type: ignore[operator]
    x = model[: 2 * k](X).detach() if k else X
    p = torch.softmax(model(X).detach(), 1)
    Q = p.sqrt()[:, :, None] * (torch.eye(3, dtype=F64) - p[:, None])
    mean_q = torch.stack([Q[y == i].mean(0) for i in there]).mean(0)
    mean_x = torch.stack([x[y == i].mean(0) for i in there]).mean(0)
    torch.testing.assert_close(found.output.predicted, (S.T @ mean_q.T).T)
    expected = torch.stack([torch.kron(row, mean_x) for row in mean_q @ S])
    torch.testing.assert_close(found.weight.predicted, expected)
    for match in (found.output, found.weight):
        cosines = torch.cosine_similarity(match.measured, match.predicted, dim=1)
        torch.testing.assert_close(match.cosines, cosines)
        torch.testing.assert_close(match.lengths, match.measured.norm(dim=1) / (
            match.predicted.norm(dim=1)))  # fmt: skip


def test_outputs_agree_where_nothing_gates() -> None:
    """A deep linear network: the centers by output are the predicted ones without the halves."""
    found = logit_centers(cs.Problem(chain(gates=False), data([0, 1, 2, 2, 1, 0, 0])), "0")
    torch.testing.assert_close(found.output.cosines, torch.ones(3, dtype=F64))
    torch.testing.assert_close(found.output.lengths, torch.full((3,), 4.0, dtype=F64))
    assert found.output.overlap == pytest.approx(1.0)
    assert found.output.basis().shape == (7, 2)


def test_a_wide_random_network_has_the_predicted_centers() -> None:
    """DH's claim: centers, their span, and the top eigenspace of the layer's Hessian."""
    g = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(200, 200, bias=False), nn.ReLU(), nn.Linear(200, 4, bias=False))
    model = model.double()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=g, dtype=F64) / 200**0.5)
    mean = 0.3 * torch.randn(200, generator=g, dtype=F64)  # gates are open about half of the time
    X, y = mean + torch.randn(2000, 200, generator=g, dtype=F64), torch.arange(2000) % 4
    problem = cs.Problem(model, (X, y), params=["0.weight"])
    found = logit_centers(problem, "0")
    for match in (found.weight, found.output):
        assert float(match.cosines.min()) > 0.9
        assert match.overlap > 0.9
        assert bool(((match.lengths - 1).abs() < 0.2).all())
    pairs = cs.eigenpairs(Hessian(problem), 3, generator=g)
    assert float(overlap(pairs.vectors, found.weight.basis())[-1]) > 0.85
    shuffled = found.weight.basis().flip(0)  # another subspace of the same dimension
    assert float(overlap(pairs.vectors, shuffled.contiguous())[-1]) < 0.5


def test_layers_before_others_than_plain_matrices_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)).double()
    problem = cs.Problem(model, convert(classes(2, 5, 5, sizes=(7, 5)), F64))
    with pytest.raises(cs.CurvescopeError, match=r"'0' and all layers after it must be plain"):
        logit_centers(problem, "0")
    assert logit_centers(problem, "3").output.cosines.shape == (3,)
