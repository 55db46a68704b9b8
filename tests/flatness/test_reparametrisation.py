"""Rescaled layers, the deep linear example, and the mass at zero along training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.flatness.deep_linear import DeepLinear
from curvescope.flatness.degeneracy import rank_history
from curvescope.flatness.rescaling import Congruence, rescale

EXACT = 1e-8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(*layers: nn.Module) -> nn.Module:
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator(p.numel()), dtype=p.dtype))
    return model


def mlp() -> nn.Module:
    return build(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.LeakyReLU(), nn.Linear(6, 3))


def cnn() -> nn.Module:
    return build(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2),
        nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(2, 3),
    )  # fmt: skip


def problem(model: nn.Module) -> cs.Problem:
    shape = (1, 4, 4) if isinstance(model[0], nn.Conv2d) else (4,)
    X = torch.randn(12, *shape, generator=generator(1), dtype=torch.float64)
    return cs.Problem(model, (X, torch.randint(3, (12,), generator=generator(2))))


PAIRS = [
    (mlp, "0", "2"), (mlp, "2", "4"), (cnn, "0", "3"), (cnn, "3", "7")
]  # fmt: skip


@pytest.mark.parametrize("alpha", [0.1, 3.0, 1000.0])
@pytest.mark.parametrize(("make", "first", "second"), PAIRS)
def test_loss_stays_and_blocks_move_as_predicted(
    make: object, first: str, second: str, alpha: float
) -> None:
    before = problem(make())
    after = rescale(before, first, second, alpha)
    assert float(after.problem.value()) == pytest.approx(float(before.value()), rel=1e-12)
    assert after.shift <= 1e-12
    H, H_new = cs.Hessian(before), cs.Hessian(after.problem)
    for name in before.params.names:
        factor = after.block_factor(name)
        layer, _, kind = name.partition(".")
        expected = {first: alpha**-2, second: alpha**2 if kind == "weight" else 1.0}
        assert factor == pytest.approx(expected.get(layer, 1.0))
        old, new = (torch.linalg.eigvalsh(A.block(name).dense())[-1] for A in (H, H_new))
        assert float(new) == pytest.approx(factor * float(old), rel=EXACT, abs=1e-13 * factor)
    d = after.diagonal()
    torch.testing.assert_close(after.problem.gradient(), d * before.gradient())
    dense = d[:, None] * H.dense() * d
    assert float((H_new.dense() - dense).norm()) <= EXACT * float(dense.norm())
    torch.testing.assert_close(after.predicted(H).dense(), dense)


def test_the_largest_eigenvalue_of_the_rescaled_hessian_is_predicted() -> None:
    before = problem(mlp())
    after = rescale(before, "0", "2", 30.0)
    predicted = cs.eigenpairs(after.predicted(cs.Hessian(before)), 1, generator=generator())
    measured = cs.eigenpairs(cs.Hessian(after.problem), 1, generator=generator())
    assert float(predicted.values[0]) == pytest.approx(float(measured.values[0]), rel=EXACT)
    original = cs.eigenpairs(cs.Hessian(before), 1, generator=generator())
    assert float(measured.values[0]) > 100 * float(original.values[0])


def test_the_model_is_left_alone_and_chosen_parameters_stay_chosen() -> None:
    model = mlp()
    state = copy.deepcopy(model.state_dict())
    X = torch.randn(6, 4, generator=generator(1), dtype=torch.float64)
    restricted = cs.Problem(model, (X, torch.arange(6) % 3), params=["2.weight", "4"])
    after = rescale(restricted, "0", "2", 2.0)
    assert after.problem.params.names == ("2.weight", "4.weight", "4.bias")
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert after.diagonal().unique().tolist() == [1.0, 2.0]


def test_rescaling_refusals() -> None:
    norm = build(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    tanh = build(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    tied = build(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    tied[2].weight = tied[0].weight
    with pytest.raises(cs.CurvescopeError, match="positively homogeneous functions alone"):
        rescale(problem(norm.eval()), "0", "3", 2.0)
    with pytest.raises(cs.CurvescopeError, match="positively homogeneous functions alone"):
        rescale(problem(tanh), "0", "2", 2.0)
    with pytest.raises(cs.CurvescopeError, match="positively homogeneous functions alone"):
        rescale(problem(mlp()), "0", "4", 2.0)
    with pytest.raises(cs.CurvescopeError, match="is shared"):
        rescale(problem(tied), "0", "2", 2.0)
    with pytest.raises(cs.CurvescopeError, match="got ReLU; those are 0, 2, 4"):
        rescale(problem(mlp()), "0", "1", 2.0)
    with pytest.raises(cs.CurvescopeError, match="alpha must be positive, got -2"):
        rescale(problem(mlp()), "0", "2", -2.0)
    with pytest.raises(cs.CurvescopeError, match="needs a symmetric operator and a diagonal"):
        Congruence(cs.Identity(3, dtype=torch.float64, device="cpu"), torch.ones(2))


# The deep linear example ------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(0.5, -1.5, 2.0), (1.0, 2.0), (0.3, 0.7, -1.1, 0.9, 1.4)])
@pytest.mark.parametrize("X", [-1.3, 0.4])
def test_closed_forms_against_autograd(weights: tuple[float, ...], X: float) -> None:
    def loss(w: Tensor) -> Tensor:
        return torch.exp(w.prod() * X)

    w = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    at = DeepLinear(weights, X)
    value = loss(w)
    (gradient,) = torch.autograd.grad(value, w)
    H = torch.autograd.functional.hessian(loss, w.detach())
    assert at.loss == pytest.approx(value.item())
    torch.testing.assert_close(at.gradient, gradient)
    torch.testing.assert_close(at.hessian, H)
    assert at.trace == pytest.approx(float(H.trace()))
    G = torch.linalg.eigvalsh(at.gauss_newton)
    assert at.trace == pytest.approx(float(G[-1]))  # FF eq. 3, for the Gauss–Newton matrix
    assert float(G[:-1].abs().max()) <= 1e-12 * float(G[-1])  # rank one
    assert torch.linalg.matrix_rank(at.hessian) == len(weights)  # FF print rank one for this


def test_the_library_agrees_with_the_closed_form() -> None:
    """The example as a model of one sample: output ``p X``, loss its exponential."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.w.prod() * x

    data = (torch.full((1, 1), -1.3, dtype=torch.float64), torch.zeros(1, 1).double())
    chain = cs.Problem(Chain(), data, loss=lambda z, _: torch.exp(z).mean())
    at = DeepLinear((0.5, -1.5, 2.0), -1.3)
    torch.testing.assert_close(cs.Hessian(chain).dense(), at.hessian)
    torch.testing.assert_close(cs.GaussNewton(chain).dense(), at.gauss_newton)


def test_rescaling_the_chain_and_growing_its_weights() -> None:
    at = DeepLinear((0.5, -1.5, 2.0), -1.3)
    moved = at.rescaled(1, 2, 100.0)
    assert moved.loss == pytest.approx(at.loss, rel=1e-12)
    assert moved.trace > 100 * at.trace
    assert float(moved.gradient.norm()) > 10 * float(at.gradient.norm())
    # FF: as the loss is driven to zero the exponential beats the polynomial.
    flatter = [DeepLinear((s, s, s), -1.0) for s in (2.0, 3.0, 4.0)]
    assert [a.loss for a in flatter] == sorted((a.loss for a in flatter), reverse=True)
    assert [a.trace for a in flatter] == sorted((a.trace for a in flatter), reverse=True)
    with pytest.raises(cs.CurvescopeError, match="needs two different layers of 3"):
        at.rescaled(1, 1, 2.0)
    with pytest.raises(cs.CurvescopeError, match="at least two weights"):
        DeepLinear((1.0,), 1.0)


# Degeneracy -------------------------------------------------------------------------------------


def test_rank_history_along_training() -> None:
    """Against counted eigenvalues; the bound is FF's formula."""
    model = build(nn.Linear(30, 6), nn.ReLU(), nn.Linear(6, 3))
    X = torch.randn(8, 30, generator=generator(1), dtype=torch.float64)
    y = torch.randint(3, (8,), generator=generator(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shares = []

    def points():  # type: ignore[no-untyped-def]
        for epoch in range(3):
            current = cs.Problem(model, (X, y))
            yield epoch, current
            values = torch.linalg.eigvalsh(cs.GaussNewton(current).dense())
            shares.append(float((values.abs() < 1e-10 * values.max()).double().mean()))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), y).backward()
            optimizer.step()

    history = rank_history(points(), generator=generator(), probes=20)
    assert history.bound == 4 * 3 * (6 + 3 + 30)
    assert history.parameters == 207
    assert history.predicted == pytest.approx(1 - 468 / 207)
    assert [p.epoch for p in history.points] == [0.0, 1.0, 2.0]
    assert history.points[0].loss > history.points[2].loss
    for point, share in zip(history.points, shares, strict=True):
        nearest = point.gauss_newton.nearest
        assert share > 0.9
        assert abs(nearest.value - share) <= 4 * nearest.stderr
        assert point.hessian.pair.value >= point.hessian.nearest.value


def test_rank_history_refusals() -> None:
    with pytest.raises(cs.CurvescopeError, match="needs at least one pair"):
        rank_history([], generator=generator())
    mixed = [(0, problem(mlp())), (1, problem(cnn()))]
    with pytest.raises(cs.CurvescopeError, match="must have the same variables, got 82 and then"):
        rank_history(mixed, generator=generator())
