"""The theorem against what Lanczos does, and its polynomial against the recurrence."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.errors import CurvescopeError
from curvescope.operators.simple import Diagonal
from curvescope.spectra import lanczos, lanczos_bounds, neuron_rank_bound, path_rank_bound

F64 = torch.float64


def chebyshev(degree: int, x: float) -> float:
    """``T_0 = 1``, ``T_1 = x``, ``T_{k+1} = 2 x T_k − T_{k−1}``."""
    before, now = 1.0, x
    for _ in range(degree):
        before, now = now, 2 * x * now - before
    return before


def test_the_formula_by_the_recurrence() -> None:
    values, k, cosines = torch.tensor([5.0, 3.0, 1.5, -1.0], dtype=F64), 5, (0.3, 0.45)
    bounds = lanczos_bounds(values, [k], cosines=cosines)
    (above,), (below,) = bounds.largest_at_least, bounds.smallest_at_most
    gap = 6.0 * (1 / 0.3**2 - 1) / chebyshev(k - 1, 1 + 2 * 2.0 / 4.0) ** 2
    assert above == pytest.approx(5.0 - gap, rel=1e-12)
    gap = 6.0 * (1 / 0.45**2 - 1) / chebyshev(k - 1, 1 + 2 * 2.5 / 3.5) ** 2
    assert below == pytest.approx(-1.0 + gap, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_ritz_values_obey_it(seed: int) -> None:
    """For the start vector's own angles, at every step; it is no empty statement at the end."""
    g = torch.Generator().manual_seed(seed)
    values = torch.cat([torch.randn(40, dtype=F64, generator=g), torch.tensor([5.0, -4.0]).to(F64)])
    A, n = Diagonal(values), len(values)
    start = torch.randn(n, dtype=F64, generator=g)
    unit = (start / start.norm()).abs()
    cosines = (float(unit[values.argmax()]), float(unit[values.argmin()]))
    steps = range(1, 16)
    bounds = lanczos_bounds(values, steps, cosines=cosines)
    for i, k in enumerate(steps):
        theta: Tensor = lanczos(A, k, start=start).ritz()[0]
        assert bounds.largest_at_least[i] - 1e-12 <= float(theta[-1]) <= 5.0 + 1e-12
        assert -4.0 - 1e-12 <= float(theta[0]) <= bounds.smallest_at_most[i] + 1e-12
    assert bounds.largest_at_least[-1] > 4.99
    assert list(bounds.largest_at_least) == sorted(bounds.largest_at_least)


def test_edges() -> None:
    one = lanczos_bounds(torch.full((4,), 2.0), [1, 7])  # a multiple of the identity
    assert one.largest_at_least == one.smallest_at_most == (2.0, 2.0)
    blind = lanczos_bounds(torch.tensor([1.0, 0.5, 0.0]), [9], cosines=(0.0, 1.0))
    assert blind.largest_at_least == (0.0,)
    assert blind.smallest_at_most == (0.0,)
    double = lanczos_bounds(torch.tensor([1.0, 1.0, 0.0]), [50])  # no gap at the top: ρ = 0
    assert double.largest_at_least == (0.0,)
    two = lanczos_bounds(torch.tensor([1.0, 0.0]), [2])  # two steps are exact
    assert two.largest_at_least == (1.0,)
    far = lanczos_bounds(torch.tensor([1e6, 1.0, 0.0]), [400])
    assert far.largest_at_least == (1e6,)
    assert all(abs(x) < inf for x in far.smallest_at_most)


def test_by_default_the_start_vector_is_random() -> None:
    values = torch.linspace(0, 1, 50, dtype=F64)
    assert lanczos_bounds(values, [30]) == lanczos_bounds(values, [30], cosines=(50**-0.5,) * 2)


def test_what_is_no_spectrum_is_refused() -> None:
    with pytest.raises(CurvescopeError, match="at least two finite eigenvalues"):
        lanczos_bounds(torch.tensor([1.0]), [1])
    with pytest.raises(CurvescopeError, match=r"cosines must lie between 0 and 1, got 1\.5"):
        lanczos_bounds(torch.tensor([1.0, 0.0]), [1], cosines=(1.5, 0.1))
    with pytest.raises(CurvescopeError, match="steps must be an integer of at least 1, got 0"):
        lanczos_bounds(torch.tensor([1.0, 0.0]), [0])


def test_the_rank_bound_holds_for_one_sample_and_not_for_many() -> None:
    """Granziol (2020), sec. 3.2, against the ranks of dense matrices."""
    sizes = [20, 25, 25, 2]
    g = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layer = nn.Linear(n, m).double()
        with torch.no_grad():
            layer.weight.normal_(0, (2 / n) ** 0.5, generator=g)
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    X = torch.randn(600, 20, dtype=F64, generator=g)
    y = torch.randint(2, (600,), generator=g)
    paths, whole = path_rank_bound(sizes[1:], 20), neuron_rank_bound(sizes[1:], 20, 2)
    assert whole < cs.Problem(model, (X, y)).params.size

    def rank(matrix: Tensor) -> int:
        return int(torch.linalg.matrix_rank(matrix, hermitian=True))

    for i in range(3):
        x, t = X[i : i + 1], y[i : i + 1]
        output = cs.Problem(model, (x, t), loss=lambda z, _: z[:, 0].mean())
        gradient = output.gradient()
        assert rank(cs.Hessian(output).dense() + torch.outer(gradient, gradient)) <= paths
        assert rank(cs.Hessian(cs.Problem(model, (x, t))).dense()) <= whole
    assert rank(cs.Hessian(cs.Problem(model, (X, y))).dense()) > whole


def test_the_rank_bound_of_paths() -> None:
    assert path_rank_bound([100, 10], 784) == 2 * 894
    assert neuron_rank_bound([100, 10], 784, 10) == 20 * path_rank_bound([100, 10], 784)
    with pytest.raises(CurvescopeError, match="inputs must be an integer of at least 1"):
        path_rank_bound([3], 0)
