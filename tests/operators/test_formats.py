"""Vectors, sums and calls as people guess them, and what SciPy does with an operator."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.operators.base import CostWarning, LinearOperator


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(10, 4, generator=g, dtype=torch.float64), torch.arange(10) % 3


def hessian() -> cs.Hessian:
    return cs.Hessian(cs.Problem(network(), data()))


def vector(n: int = 43) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("matrix", [cs.Hessian, cs.GaussNewton, cs.EmpiricalFisher])
def test_a_matrix_from_a_model_and_data(matrix: type) -> None:
    model, (X, y) = network(), data()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    problem = cs.Problem(model, (X, y), loss=loss, params="2", batch_size=4)
    expected = matrix(problem, keep=True).dense()
    for ours in (
        matrix(model, (X, y), loss=loss, params="2", batch_size=4, keep=True),
        matrix(model, X, y, loss=loss, params=["2"]),
        matrix(model, X.numpy(), y.numpy(), loss=loss, params="2"),
    ):
        torch.testing.assert_close(ours.dense(), expected)
    with pytest.raises(cs.CurvescopeError, match=r"a model needs its data; write .*\(model, \(X"):
        matrix(model)
    with pytest.raises(cs.CurvescopeError, match="has its data already"):
        matrix(problem, (X, y))
    with pytest.raises(cs.CurvescopeError, match="options are keep, columns, cuda_graph"):
        matrix(problem, loss="mse")
    with pytest.raises(cs.CurvescopeError, match="needs a Problem, or a model and data"):
        matrix((X, y))


def test_a_monte_carlo_fisher_from_a_model_and_data() -> None:
    model, (X, y) = network(), data()
    g = torch.Generator().manual_seed
    ours = cs.MonteCarloFisher(model, X, y, samples=2, generator=g(0))
    other = cs.MonteCarloFisher(cs.Problem(model, (X, y)), samples=2, generator=g(0))
    assert torch.equal(ours @ vector(), other @ vector())


def test_vectors_come_back_as_what_they_were() -> None:
    H, v = hessian(), vector()
    expected = H @ v
    np.testing.assert_array_equal(H @ v.numpy(), expected.numpy())
    block = np.stack([v.numpy(), 2 * v.numpy()], axis=1)
    np.testing.assert_allclose((H @ block)[:, 1], 2 * expected.numpy(), rtol=1e-12)
    named = H.space.unflatten(v)
    for A, factor in ((H, 1.0), (2 * H, 2.0), (2 * H + 0.0, 2.0)):
        as_list = A @ list(named.values())
        assert [t.shape for t in as_list] == [p.shape for p in network().parameters()]
        flat = torch.cat([t.flatten() for t in as_list])
        torch.testing.assert_close(flat, factor * expected, rtol=1e-13, atol=1e-13)
        as_mapping = A @ dict(reversed(named.items()))
        torch.testing.assert_close(H.space.flatten(as_mapping), factor * expected)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("v", "needs a torch.Tensor or a NumPy array, got str"),
        ([torch.zeros(5, 4)], "needs a tensor for each of the 4 parameters, got 1"),
        ([torch.zeros(4, 5)] * 4, r"0.weight needs a tensor \[5, 4\], got \[4, 5\]"),
        ({"0.weight": torch.zeros(5, 4)}, r"0.bias needs a tensor \[5\], got NoneType"),
    ],
)
def test_vectors_that_do_not_fit(x: object, message: str) -> None:
    with pytest.raises(cs.CurvescopeError, match=message):
        hessian() @ x  # type: ignore[call-overload]


def test_lists_need_named_parameters() -> None:
    with pytest.raises(cs.CurvescopeError, match=r"got list; use torch\.as_tensor"):
        cs.Dense(torch.eye(2)) @ [torch.ones(2)]


def test_numbers_stand_for_multiples_of_the_identity() -> None:
    H = hessian()
    D, one = H.dense(), torch.eye(43, dtype=torch.float64)
    sums: dict[str, tuple[LinearOperator, Tensor]] = {
        "2 H + c": (2 * H + 0.1, 2 * D + 0.1 * one),
        "c + H": (0.1 + H, D + 0.1 * one),
        "H - c": (H - 0.1, D - 0.1 * one),
        "c - H": (0.1 - H, 0.1 * one - D),
        "NumPy": (np.float64(2) * H + np.float32(1), 2 * D + one),
        "tensor": (torch.tensor(2.0) * H + torch.tensor(1.0), 2 * D + one),
        "Identity": (2 * H + cs.Identity(43, dtype=torch.float64), 2 * D + one),
    }
    for ours, expected in sums.values():
        torch.testing.assert_close(ours.dense(), expected, rtol=1e-12, atol=1e-13)
    assert (cs.GaussNewton(H.problem) + 0.1).psd
    with pytest.raises(cs.CurvescopeError, match="square operator only"):
        cs.Dense(torch.ones(2, 3)) + 1.0
    with pytest.raises(cs.CurvescopeError, match="number must be a finite number, got nan"):
        H + float("nan")
    with pytest.raises(cs.CurvescopeError, match=r"needs an operator, got str; wrap a matrix"):
        H + "1"  # type: ignore[operator]


def test_scipy_takes_operators_as_they_are() -> None:
    g = torch.Generator().manual_seed(3)
    M = torch.randn(20, 20, generator=g, dtype=torch.float64)
    A, S = cs.Dense(M), cs.Dense(M @ M.T)
    linalg, b = scipy.sparse.linalg, np.ones(20)
    np.testing.assert_allclose(linalg.eigsh(S, k=2)[0], np.linalg.eigvalsh(S.dense())[-2:])
    np.testing.assert_allclose(
        np.sort(linalg.svds(A, k=2)[1]), np.sort(np.linalg.svd(M)[1][:2]), rtol=1e-10
    )
    x, info = linalg.cg(S + 1.0, b, rtol=1e-12)
    assert info == 0
    np.testing.assert_allclose((S + 1.0) @ x, b, atol=1e-9)
    np.testing.assert_allclose(A.rmatvec(b), M.T.numpy() @ b)
    np.testing.assert_allclose(A.rmatmat(np.eye(20)), M.T.numpy())
    H = hessian()
    top = torch.linalg.eigvalsh(H.dense())[-1].item()
    np.testing.assert_allclose(linalg.eigsh(H, k=1)[0], [top], rtol=1e-10)
    assert H.dtype == torch.float64


@pytest.mark.parametrize(
    ("name", "call"),
    [("trace", r"cs\.trace\(A\)"), ("eigenvalues", r"cs\.eigenpairs\(A, k=5\)\.values")],
)
def test_methods_that_are_functions_say_so(name: str, call: str) -> None:
    with pytest.raises(AttributeError, match=f"functions of an operator, {call}"):
        getattr(hessian(), name)
    with pytest.raises(AttributeError, match=r"'Hessian' object has no attribute 'nothing'$"):
        hessian().nothing  # noqa: B018
    assert not hasattr(hessian(), "trace")


class Slow(LinearOperator):
    """An operator whose products take some time."""

    def __init__(self, n: int) -> None:
        super().__init__((n, n), dtype=torch.float32, device="cpu", symmetric=True)
        self.blocks: list[int] = []

    def _matmat(self, X: Tensor) -> Tensor:
        self.blocks.append(X.shape[1])
        return X.clone()


def test_a_dense_matrix_that_takes_long_warns_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0])
    monkeypatch.setattr("curvescope.operators.base.time.perf_counter", lambda: next(clock))
    A = Slow(1600)  # a second for eight columns
    with pytest.warns(CostWarning, match=r"dense\(\) takes 1,600 products, up to 3 min here"):
        A.dense()
    assert A.blocks == [8, 1600]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Slow(400).dense()
