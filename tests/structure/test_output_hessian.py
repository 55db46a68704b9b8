"""The closed form of the output Hessian: exact for linear networks, and Theorem H.1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.errors import CurvescopeError
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.output_hessian import (
    class_subspace,
    closed_output_hessian,
    independent_output_hessian,
    later_weights,
    output_hessian_theory,
    random_two_layer,
)
from tests.cases import classes, convert


class DeepLinear(nn.Module):
    """Three linear layers and nothing between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(x)))


def test_deep_linear_network() -> None:
    """Without gates ``E[M] = Sᵀ E[A] S``: eq. 56 without its powers of 4, overlap 1."""
    model = DeepLinear().double()
    problem = cs.Problem(model, convert(classes(4), torch.float64))
    factors = kronecker_factors(problem)
    theory = output_hessian_theory(problem, factors)
    assert list(theory) == ["fc1", "fc2", "fc3"]
    A = factors["fc3"].output_hessian
    for name, later, power in (
        ("fc1", [model.fc2.weight, model.fc3.weight], 16),
        ("fc2", [model.fc3.weight], 4),
        ("fc3", [], 1),
    ):
        closed = closed_output_hessian([w.detach() for w in later], A)
        torch.testing.assert_close(factors[name].output_hessian, power * closed)
        assert theory[name].overlap == pytest.approx(1.0)
        assert theory[name].dimension == 2
        torch.testing.assert_close(theory[name].eigenvalues, power * theory[name].predicted)


def test_subspace_is_spanned_by_differences_of_rows() -> None:
    g = torch.Generator().manual_seed(0)
    W2, W3 = torch.randn(5, 7, generator=g).double(), torch.randn(4, 5, generator=g).double()
    basis = class_subspace([W2, W3], 4)
    S = W3 @ W2
    torch.testing.assert_close(basis.T @ basis, torch.eye(3).double())
    for i in range(3):
        difference = S[i] - S[3]
        torch.testing.assert_close(basis @ (basis.T @ difference), difference)
    assert class_subspace([W3[:, :2]], 4).shape == (2, 2)  # a layer narrower than c − 1
    torch.testing.assert_close(class_subspace([], 3).sum(0), torch.zeros(2).double())
    assert class_subspace([torch.randn(2, 6)], 2).shape == (6, 1)  # two classes


def test_only_the_linear_tail_takes_part() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    problem = cs.Problem(model, convert(classes(2, 6, 6), torch.float64))
    factors = kronecker_factors(problem)
    theory = output_hessian_theory(problem, factors)
    assert list(theory) == ["3", "5"]
    assert theory["5"].overlap == pytest.approx(1.0)
    values, vectors = torch.linalg.eigh(factors["3"].output_hessian)
    basis = class_subspace([model[5].weight.detach()], 3)
    expected = (vectors[:, -2:].T @ basis).square().sum() / 2
    assert theory["3"].overlap == pytest.approx(float(expected))
    torch.testing.assert_close(theory["3"].eigenvalues, values.flip(0))


def test_later_weights_do_not_depend_on_the_variables() -> None:
    model = DeepLinear().double()
    data = convert(classes(4), torch.float64)
    later = later_weights(cs.Problem(model, data, params=["fc1.weight", "fc3.weight"]))
    assert [[list(W.shape) for W in each] for each in later.values()] == [
        [], [[3, 5]], [[5, 6], [3, 5]],
    ]  # fmt: skip
    assert list(later) == ["fc3", "fc2", "fc1"]
    every = kronecker_factors(cs.Problem(model, data))
    problem = cs.Problem(model, data, params=["fc1.weight"])
    torch.testing.assert_close(
        output_hessian_theory(problem, every)["fc1"].predicted,
        output_hessian_theory(cs.Problem(model, data), every)["fc1"].predicted,
    )
    with pytest.raises(cs.CurvescopeError, match="the last layer 'fc3' must be among them"):
        output_hessian_theory(problem, kronecker_factors(problem))


def test_theorem_h1() -> None:
    """The gap grows with the width, and the eigenspace tends to that of the weights."""
    nets = [
        random_two_layer(
            width, inputs=600, classes=5, samples=1500, generator=torch.Generator().manual_seed(1)
        )
        for width in (40, 160, 640)
    ]
    ratios = [net.ratio for net in nets]
    assert ratios[0] > ratios[1] > ratios[2]
    assert nets[-1].overlap > 0.98
    assert nets[-1].ratio < 0.12


def test_random_network_against_its_definition() -> None:
    """Eq. 67 written out, with the same draws."""
    g = torch.Generator().manual_seed(3)
    W1 = nn.functional.normalize(torch.randn(6, 8, generator=g)).double()
    W2 = nn.functional.normalize(torch.randn(3, 6, generator=g)).double()
    X = torch.randn(50, 8, generator=g).double()
    M = torch.zeros(6, 6).double()
    for x in X:
        y = torch.relu(W1 @ x)
        p = torch.softmax(W2 @ y, 0)
        D = torch.diag((y > 0).double())
        M += D @ W2.T @ (torch.diag(p) - torch.outer(p, p)) @ W2 @ D / 50
    net = random_two_layer(
        6, inputs=8, classes=3, samples=50, generator=torch.Generator().manual_seed(3)
    )
    values, vectors = torch.linalg.eigh(M)
    torch.testing.assert_close(net.eigenvalues, values.flip(0)[:3], rtol=1e-4, atol=1e-7)
    assert net.ratio == pytest.approx(float(values[-3] / values[-2]), rel=1e-3)
    basis = class_subspace([W2], 3)
    expected = float((vectors[:, -2:].T @ basis).square().sum() / 2)
    assert net.overlap == pytest.approx(expected, rel=1e-3)


def test_refusals() -> None:
    model = DeepLinear().double()
    problem = cs.Problem(model, convert(classes(4), torch.float64))
    with pytest.raises(cs.CurvescopeError, match="the last layer 'fc3' must be among them"):
        output_hessian_theory(problem, kronecker_factors(problem, layers=["fc1", "fc2"]))
    with pytest.raises(cs.CurvescopeError, match="the weights must chain as matrices"):
        class_subspace([torch.ones(3, 2), torch.ones(2, 2)], 2)
    with pytest.raises(cs.CurvescopeError, match="the last weight needs 4 rows, got 3"):
        class_subspace([torch.ones(3, 2)], 4)
    with pytest.raises(cs.CurvescopeError, match="width must be at least the 5 classes, got 3"):
        random_two_layer(3, inputs=4, classes=5, samples=2, generator=torch.Generator())
    one = cs.Problem(nn.Linear(2, 1), (torch.ones(2, 2), torch.ones(2, 1)), loss="mse")
    with pytest.raises(cs.CurvescopeError, match=r"at least two outputs|at least 2"):
        output_hessian_theory(one, kronecker_factors(one))


def test_independent_gates_by_enumerating_them() -> None:
    """``E[G^T A G]`` over all states of the gates of two layers, each as likely as any other."""
    g = torch.Generator().manual_seed(0)
    first, second = torch.randn(3, 2, generator=g).double(), torch.randn(4, 3, generator=g).double()
    A = torch.randn(4, 4, generator=g).double()
    A = A @ A.T
    total = torch.zeros(2, 2, dtype=torch.float64)
    for bits in range(2**5):
        gates = torch.tensor([(bits >> place) & 1 for place in range(5)]).double()
        G = second @ torch.diag(gates[:3]) @ first @ torch.diag(gates[3:])
        total += G.T @ A @ G / 2**5
    torch.testing.assert_close(independent_output_hessian([first, second], A), total)
    torch.testing.assert_close(independent_output_hessian([], A), A)
    off = ~torch.eye(3, dtype=torch.bool)
    one_layer = independent_output_hessian([second], A)
    torch.testing.assert_close(one_layer[off], closed_output_hessian([second], A)[off])
    with pytest.raises(CurvescopeError, match="must chain"):
        independent_output_hessian([second, first], A)
