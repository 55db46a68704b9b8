"""The bound of theorem 1 against dense Hessians, and eq. 1 against losses that were measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.errors import CurvescopeError
from curvescope.flatness import CurvatureBound, curvature_bound, shift_estimate
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian

F64 = torch.float64


def relu_network(sizes: list[int], scale: float = 1.0, seed: int = 0) -> nn.Sequential:
    g = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layer = nn.Linear(n, m, bias=False).double()
        with torch.no_grad():
            layer.weight.copy_(scale * torch.randn(m, n, dtype=F64, generator=g) / n**0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def data(features: int, samples: int, classes: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(7)
    y = torch.arange(samples) % classes
    return torch.randn(samples, features, dtype=F64, generator=g), y


def bound_of(model: nn.Sequential, X: Tensor, y: Tensor) -> CurvatureBound:
    with torch.no_grad():
        losses = F.cross_entropy(model(X), y, reduction="none")
    norms = [float(torch.linalg.matrix_norm(p.detach(), 2)) for p in model.parameters()]
    return curvature_bound(losses, X.norm(dim=1), norms)


def norms_of(model: nn.Sequential, X: Tensor, y: Tensor) -> tuple[float, float, float]:
    problem = cs.Problem(model, (X, y))
    H, G = Hessian(problem).dense(), GaussNewton(problem).dense()
    h, g, e = (float(torch.linalg.eigvalsh(A).abs().max()) for A in (H, G, H - G))
    return h, g, e


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("sizes", [[3, 4], [4, 6, 3], [3, 5, 4, 5, 3]])
def test_no_hessian_exceeds_the_bound(sizes: list[int], scale: float) -> None:
    for seed in range(4):
        model, (X, y) = relu_network(sizes, scale, seed), data(sizes[0], 11, sizes[-1])
        bound, (h, g, e) = bound_of(model, X, y), norms_of(model, X, y)
        assert g <= bound.gauss_newton * (1 + 1e-12)
        assert e <= bound.residual * (1 + 1e-12) + 1e-14
        assert h <= bound.hessian * (1 + 1e-12)


def test_it_is_reached_by_two_classes_and_one_sample() -> None:
    """``λ(diag p − p pᵀ) = 2 q (1 − q)`` and ``J = x ⊗ I``."""
    model = relu_network([3, 2], 1.0)
    X = torch.tensor([[1.0, 2.0, -1.0]], dtype=F64)
    y = model(X).argmax(1)
    _, g, _ = norms_of(model, X, y)
    assert bound_of(model, X, y).gauss_newton == pytest.approx(g, rel=1e-12)


def separated() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network of two layers that classifies its data with a margin."""
    model = relu_network([4, 8, 3], 1.0, seed=3)
    X, _ = data(4, 30, 3)
    z = model(X).detach()
    top = z.topk(2, 1).values
    keep = top[:, 0] - top[:, 1] > 0.3
    return model, X[keep], z[keep].argmax(1)


def test_curvature_vanishes_with_the_loss_where_weights_grow_slowly() -> None:
    """PP theorem 1: scaled-up weights drive the loss to 0 exponentially, norms as powers."""
    model, X, y = separated()
    rows = []
    for factor in (1.0, 3.0, 6.0, 9.0):  # beyond, losses round to 0
        other = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
        other = other.double()
        with torch.no_grad():
            for p, q in zip(other.parameters(), model.parameters(), strict=True):
                p.copy_(factor * q)
        loss = float(F.cross_entropy(other(X), y).detach())
        rows.append((loss, norms_of(other, X, y)[0], bound_of(other, X, y).hessian))
    losses, largest, bounds = zip(*rows, strict=True)
    for values in (losses, largest[1:], bounds[1:]):
        assert list(values) == sorted(values, reverse=True)
    assert losses[-1] < 1e-11 * losses[0]
    assert largest[-1] < bounds[-1] < 1e-6


def test_without_control_of_the_weights_curvature_grows_while_the_loss_falls() -> None:
    """The theorem needs more than the loss: a rescaling undoes what the loss does."""
    model, X, y = separated()
    rows = []
    for step in range(1, 4):
        other = relu_network([4, 8, 3])
        alpha = 10.0 ** (4 * step)
        with torch.no_grad():
            other[0].weight.copy_(model[0].weight * 2 * step * alpha)  # type: ignore[operator]
            other[2].weight.copy_(model[2].weight * 2 * step / alpha)  # type: ignore[operator]
        rows.append((float(F.cross_entropy(other(X), y).detach()), norms_of(other, X, y)[0]))
        assert rows[-1][1] <= bound_of(other, X, y).hessian
    (a, b, c), (u, v, w) = zip(*rows, strict=True)
    assert a > b > c
    assert u < v < w


def test_the_terms_of_a_shift_against_dense_matrices() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    X, y = data(3, 12, 3)
    problem = cs.Problem(model, (X, y), batch_size=5)
    H, P = Hessian(problem).dense(), problem.params.size
    values, vectors = torch.linalg.eigh(H)
    trace, largest = float(H.trace()), float(values[-1])
    weights = [p.detach().clone() for p in model.parameters()]
    g = torch.Generator().manual_seed(1)
    shift = 1e-2 * torch.randn(P, dtype=F64, generator=g)
    found = shift_estimate(problem, shift, trace=trace, largest=largest)
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    assert found.quadratic == pytest.approx(0.5 * float(shift @ H @ shift), rel=1e-12)
    assert found.slope == pytest.approx(float(problem.gradient() @ shift), rel=1e-12)
    assert found.isotropic == pytest.approx(0.5 * trace / P * float(shift @ shift), rel=1e-12)
    moved = torch.nn.utils.parameters_to_vector(model.parameters()) + shift
    other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    torch.nn.utils.vector_to_parameters(moved.detach(), other.parameters())
    with torch.no_grad():
        change = float(F.cross_entropy(other(X), y) - F.cross_entropy(model(X), y))
    assert found.change == pytest.approx(change, rel=1e-9)
    assert found.change == pytest.approx(found.slope + found.quadratic, rel=1e-3)
    # along the top eigenvector the worst case is reached
    along = shift_estimate(problem, 1e-2 * vectors[:, -1], trace=trace, largest=largest)
    assert along.quadratic == pytest.approx(along.worst, rel=1e-10)
    assert found.quadratic <= found.worst
    # and random shifts have the mean of the trace
    shifts = torch.randn(20_000, P, dtype=F64, generator=g)
    forms = 0.5 * ((shifts @ H) * shifts).sum(1)
    means = 0.5 * trace / P * shifts.square().sum(1)
    assert float(forms.mean()) == pytest.approx(float(means.mean()), rel=0.02)


def test_the_hessian_leaves_out_units_that_switch() -> None:
    """Over many samples a shift of a ReLU network changes the loss otherwise than H says."""
    X, y = data(6, 2000, 3)
    ratios = {}
    for unit in (nn.ReLU, nn.Tanh):
        g = torch.Generator().manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 40), unit(), nn.Linear(40, 3)).double()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, dtype=F64, generator=g))
        problem = cs.Problem(model, (X, y))
        P = problem.params.size
        shifts = 3e-3 * torch.randn(60, P, dtype=F64, generator=g)
        found = [shift_estimate(problem, s, trace=0.0, largest=0.0) for s in shifts]
        second_order = sum(s.change - s.slope for s in found)
        ratios[unit] = second_order / sum(s.quadratic for s in found)
    assert ratios[nn.Tanh] == pytest.approx(1.0, abs=0.01)
    assert abs(ratios[nn.ReLU] - 1) > 0.2


def test_what_is_refused() -> None:
    one = torch.ones(1)
    with pytest.raises(CurvescopeError, match=r"needs losses and norms of inputs \[N\]"):
        curvature_bound(torch.ones(2), one, [1.0])
    with pytest.raises(CurvescopeError, match="needs a weight"):
        curvature_bound(one, one, [])
    with pytest.raises(CurvescopeError, match="losses must be finite and not negative"):
        curvature_bound(-one, one, [1.0])
    problem = cs.Problem(relu_network([3, 2]), data(3, 4, 2))
    with pytest.raises(CurvescopeError, match="shift"):
        shift_estimate(problem, torch.ones(5, dtype=F64), trace=1.0, largest=1.0)
    with pytest.raises(CurvescopeError, match=r"shift must be \[6\], got \[6, 1\]"):
        shift_estimate(problem, torch.ones(6, 1, dtype=F64), trace=1.0, largest=1.0)
