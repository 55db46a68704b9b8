"""Constant inputs and dead units: left out of kept products, which stay the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.record import constant
from curvescope.record.batch import TapeBatch
from curvescope.record.constant import smaller

N = 48


def inputs(values: str, samples: int = 23) -> Tensor:
    """Half of the columns are the same in all rows."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(samples, N, generator=g, dtype=torch.float64)
    fixed = torch.randperm(N, generator=g)[: N // 2]
    X[:, fixed] = 0.0 if values == "zero" else torch.randn(len(fixed), generator=g).double()
    return X


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(N, 36), nn.ReLU(), nn.Linear(36, 8), nn.Tanh())
        model = nn.Sequential(*model, nn.Linear(8, 3)).double()
    with torch.no_grad():
        model[0].bias[:20] = -100.0  # dead units: constant inputs of the next layer
    return model


def batches(values: str, parts: int = 1) -> list[tuple[Tensor, Tensor]]:
    X = inputs(values)
    y = torch.arange(len(X)) % 3
    return list(zip(X.chunk(parts), y.chunk(parts), strict=True))


def problem(values: str, parts: int = 1) -> Problem:
    return Problem(network(), batches(values, parts))


def differentiated_twice(values: str, v: Tensor) -> Tensor:
    """``∇ ⟨∇L, v⟩``."""
    model, [(X, y)] = network(), batches(values)
    parameters = list(model.parameters())
    loss = nn.functional.cross_entropy(model(X), y)
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    along = torch.cat([part.flatten() for part in gradient]) @ v
    return torch.cat([part.flatten() for part in torch.autograd.grad(along, parameters)])


def tape_input(subject: Problem) -> Tensor:
    """What the second layer sees."""
    model: Any = subject.model
    return model[:2](inputs("constant")).detach()


@pytest.mark.parametrize("values", ["zero", "constant"])
@pytest.mark.parametrize("parts", [1, 2])
def test_products_are_those_of_autograd(values: str, parts: int) -> None:
    subject = problem(values, parts)
    H = Hessian(subject, keep=True)
    g = torch.Generator().manual_seed(2)
    V = torch.randn(H.shape[0], 5, generator=g, dtype=torch.float64)
    expected = torch.stack([differentiated_twice(values, v) for v in V.T], 1)
    assert ((H @ V) - expected).abs().max() <= 1e-12 * expected.abs().max()
    assert ((H @ V[:, 0]) - expected[:, 0]).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("values", ["zero", "constant"])
def test_gauss_newton_kept_and_streamed_agree(values: str) -> None:
    subject = problem(values)
    kept, streamed = GaussNewton(subject, keep=True), GaussNewton(subject, keep=False)
    g = torch.Generator().manual_seed(2)
    V = torch.randn(kept.shape[0], 4, generator=g, dtype=torch.float64)
    expected = streamed @ V
    assert ((kept @ V) - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_the_smaller_matrices_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def noted(*args: Any) -> Any:
        found.append(smaller(*args))
        return found[-1]

    monkeypatch.setattr("curvescope.record.rules.products.smaller", noted)
    subject = problem("constant")
    tape = TapeBatch(subject, next(iter(subject.data)))
    tape.record_backward()
    tape.condense()
    living = int((tape_input(subject) > 0).any(0).sum())
    sizes = {s.matrix.shape[s.axis] for s in found if s is not None}
    assert sizes == {32, -(-(living + 1) // 16) * 16}  # 24 varying inputs; one for the rest


@pytest.mark.parametrize("dim", [-1, -2])
def test_gather_is_the_transpose_of_spread(dim: int) -> None:
    found = smaller(inputs("constant"), {})
    assert found is not None
    g = torch.Generator().manual_seed(3)
    shape = (2, 5, N) if dim == -1 else (2, N, 5)
    t = torch.randn(shape, generator=g, dtype=torch.float64)
    gathered = found.lines.gather(t, dim)
    s = torch.randn(gathered.shape, generator=g, dtype=torch.float64)
    torch.testing.assert_close((gathered * s).sum(), (t * found.lines.spread(s, dim)).sum())


def test_nothing_is_left_out_where_it_would_not_pay() -> None:
    X = torch.randn(20, 20, generator=torch.Generator().manual_seed(0))
    assert smaller(X, {}) is None
    assert smaller(X[:1], {}) is None
    X[:, 0] = 1.0  # 19 varying columns and a one, filled up, are more than 20
    assert smaller(X, {}) is None
    assert smaller(None, {}) is None


def test_not_a_number_is_not_constant() -> None:
    X = inputs("zero")
    X[:, 0] = float("nan")
    found = smaller(X, {})
    assert found is not None
    assert 0 in found.lines.varying.tolist()


def test_a_transpose_shares_what_was_found() -> None:
    X, known = inputs("zero"), {}
    upright, transposed = smaller(X, known), smaller(X.T, known)
    assert upright is not None
    assert transposed is not None
    assert len(known) == 1
    assert (upright.axis, transposed.axis) == (1, 0)
    assert transposed.matrix.data_ptr() == upright.matrix.data_ptr()
    assert constant.Smaller is type(transposed)
