"""Dense, diagonal, identity and low-rank operators, and what algebra makes of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import curvescope as cs
from curvescope.operators.algebra import Product, Projected, Sum
from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import Dense, Diagonal, Identity, LowRank
from tests.cases import BY_NAME, DTYPES
from tests.cases import dense as reference
from tests.conformance import assert_relative, check_operator
from tests.tolerances import EXACT


def matrix(rows: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def symmetric(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    A = matrix(n, n, seed, dtype)
    return A + A.T


def pinv_projector(B: Tensor) -> Tensor:
    """``I − B B⁺``."""
    return torch.eye(B.shape[0], dtype=B.dtype) - B @ torch.linalg.pinv(B)


def simple_operators(dtype: torch.dtype) -> dict[str, tuple[LinearOperator, Tensor]]:
    """Name → operator and its dense matrix, written independently."""
    A, S, R = matrix(6, 6, 1, dtype), symmetric(6, 2, dtype), matrix(4, 6, 3, dtype)
    d = matrix(6, 1, 4, dtype)[:, 0]
    U, W, s = matrix(6, 2, 5, dtype), matrix(4, 2, 6, dtype), torch.tensor([2.0, -0.5], dtype=dtype)
    spd = A @ A.T
    eye = torch.eye(6, dtype=dtype)
    return {
        "dense": (Dense(A), A),
        "dense-symmetric": (Dense(S), S),
        "dense-psd": (Dense(spd, symmetric=True, psd=True), spd),
        "dense-rectangular": (Dense(R), R),
        "dense-wide-to-tall": (Dense(R.T), R.T),
        "diagonal": (Diagonal(d), torch.diag(d)),
        "diagonal-psd": (Diagonal(d.abs()), torch.diag(d.abs())),
        "identity": (Identity(6, dtype=dtype, device="cpu"), eye),
        "low-rank": (LowRank(U), U @ U.T),
        "low-rank-indefinite": (LowRank(U, s), U @ torch.diag(s) @ U.T),
        "low-rank-rectangular": (LowRank(W, s, U), W @ torch.diag(s) @ U.T),
        "sum": (Dense(A) + Diagonal(d), A + torch.diag(d)),
        "sum-psd": (
            Dense(spd, psd=True) + 0.5 * Identity(6, dtype=dtype, device="cpu"),
            spd + 0.5 * eye,
        ),
        "difference": (Dense(spd, psd=True) - LowRank(U), spd - U @ U.T),
        "sum-of-three": (Dense(A) - 2.0 * Dense(S) + LowRank(U) / 4.0, A - 2 * S + U @ U.T / 4),
        "sum-rectangular": (Dense(R) + LowRank(W, s, U), R + W @ torch.diag(s) @ U.T),
        "scale": (3.0 * Dense(A), 3 * A),
        "scale-negative-of-psd": (-2.0 * Dense(spd, psd=True), -2 * spd),
        "scale-of-scale": (0.5 * (Dense(A) * 3.0), 1.5 * A),
        "negated": (-Dense(S), -S),
        "divided": (Dense(S) / 4.0, S / 4),
        "product": (Dense(R) @ Dense(A), R @ A),
        "product-of-symmetric": (Dense(S) @ Diagonal(d), S @ torch.diag(d)),
        "product-of-three": (Dense(R) @ Dense(A) @ Dense(R.T), R @ A @ R.T),
        "transpose": (Dense(A).T, A.T),
        "transpose-rectangular": (Dense(R).T, R.T),
        "transpose-of-product": ((Dense(R) @ Dense(A)).T, (R @ A).T),
        "transpose-of-sum": ((Dense(A) + 2.0 * Diagonal(d)).T, A.T + 2 * torch.diag(d)),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("name", simple_operators(torch.float64))
def test_conformance(name: str, dtype: torch.dtype) -> None:
    op, dense = simple_operators(dtype)[name]
    check_operator(op, dense, rtol=EXACT[dtype])


def test_declared_facts_follow_the_algebra() -> None:
    """``psd`` survives sums and positive multiples, not differences or products."""
    ops = {name: op for name, (op, _) in simple_operators(torch.float64).items()}
    psd = {name for name, op in ops.items() if op.psd}
    assert psd == {"dense-psd", "diagonal-psd", "identity", "low-rank", "sum-psd"}
    not_symmetric = {name for name, op in ops.items() if not op.symmetric}
    assert {"dense", "product-of-symmetric", "sum", "scale", "product-of-three"} <= not_symmetric
    assert ops["transpose"].T.shape == (6, 6)
    assert ops["dense-symmetric"].T is ops["dense-symmetric"]


def test_algebra_makes_new_operators() -> None:
    A, B = Dense(symmetric(4)), Dense(symmetric(4, 1))
    before = A.dense()
    for made in (A + B, A - B, 2.0 * A, A / 2.0, -A, A @ B):
        assert made is not A
        made.dense().zero_()
    torch.testing.assert_close(A.dense(), before, rtol=0, atol=0)


def test_operators_do_not_share_storage_with_their_arguments() -> None:
    """A matrix changed after the operator was made changes nothing: an operator is immutable.

    (The factors of LowRank can be large; it says that it does not copy them.)
    """
    M, d = symmetric(4), matrix(4, 1)[:, 0]
    ops = [Dense(M), Diagonal(d)]
    before = [op.dense() for op in ops]
    for tensor in (M, d):
        tensor.zero_()
    for op, expected in zip(ops, before, strict=True):
        torch.testing.assert_close(
            op.dense(), expected, rtol=0, atol=0, msg=lambda m, op=op: f"{op}: {m}"
        )


# Deflation and knockouts -------------------------------------------------------------------------


def test_deflate() -> None:
    S = symmetric(7)
    values, vectors = torch.linalg.eigh(S)
    pairs = SimpleNamespace(values=values[-3:], vectors=vectors[:, -3:])
    expected = S - vectors[:, -3:] @ torch.diag(values[-3:]) @ vectors[:, -3:].T
    op = cs.deflate(Dense(S), pairs)
    assert op.symmetric
    check_operator(op, expected, rtol=EXACT[torch.float64])
    remaining = torch.cat([values[:-3], torch.zeros(3, dtype=torch.float64)]).sort().values
    torch.testing.assert_close(torch.linalg.eigvalsh(op.dense()), remaining, rtol=0, atol=1e-12)


def test_deflate_errors() -> None:
    S = Dense(symmetric(5))
    with pytest.raises(cs.CurvescopeError, match=r"deflate.*symmetric"):
        cs.deflate(Dense(matrix(5, 5)), SimpleNamespace(values=torch.ones(1), vectors=matrix(5, 1)))
    with pytest.raises(cs.CurvescopeError, match=r"\[5, k\].*got \[4, 2\]"):
        cs.deflate(S, SimpleNamespace(values=torch.ones(2), vectors=matrix(4, 2)))
    with pytest.raises(cs.CurvescopeError, match=r"\[5, 2\] and \[3\]"):
        cs.deflate(S, SimpleNamespace(values=torch.ones(3), vectors=matrix(5, 2)))


KNOCKED_OUT = {
    "symmetric": lambda: (symmetric(6), matrix(6, 2, 1) @ matrix(6, 2, 1).T),
    "symmetric-full-rank": lambda: (symmetric(6), symmetric(6, 1)),
    "symmetric-from-not-symmetric": lambda: (matrix(6, 6), matrix(6, 2, 1) @ matrix(6, 2, 1).T),
    "not-symmetric-from-symmetric": lambda: (symmetric(6), matrix(6, 2, 1) @ matrix(2, 6, 2)),
    "wide": lambda: (matrix(4, 7), matrix(4, 2, 1) @ matrix(2, 7, 2)),
    "tall": lambda: (matrix(7, 4), matrix(7, 1, 1) @ matrix(1, 4, 2)),
    "zero": lambda: (symmetric(5), torch.zeros(5, 5, dtype=torch.float64)),
    "itself": lambda: (matrix(6, 2, 1) @ matrix(2, 5, 2), matrix(6, 2, 1) @ matrix(2, 5, 2)),
}


@pytest.mark.parametrize("name", KNOCKED_OUT)
def test_knockout_by_projection(name: str) -> None:
    """``(I − B B⁺) A (I − B⁺ B)`` with a pseudo-inverse written out (TR def. 3.2)."""
    A, B = KNOCKED_OUT[name]()
    expected = pinv_projector(B) @ A @ pinv_projector(B.T)
    for component in (B, Dense(B)):
        op = cs.knockout(Dense(A), component, how="project")
        assert_relative(op.dense(), expected, rtol=1e-12, what=name, scale=float(A.norm()))
        assert_relative(
            op.T.dense(), expected.T, rtol=1e-12, what=f"{name} transposed", scale=float(A.norm())
        )
    if float(expected.norm()) > 1e-10 * float(A.norm()):
        check_operator(op, expected, rtol=EXACT[torch.float64])


@pytest.mark.parametrize("name", KNOCKED_OUT)
def test_knockout_by_subtraction(name: str) -> None:
    """``A − B`` (TR def. 3.1)."""
    A, B = KNOCKED_OUT[name]()
    op = cs.knockout(Dense(A), Dense(B))
    assert_relative(op.dense(), A - B, rtol=1e-14, what=name, scale=float(A.norm()))
    if name != "itself":
        check_operator(cs.knockout(Dense(A), B, how="subtract"), A - B, rtol=EXACT[torch.float64])


@pytest.mark.parametrize("shape", [(6, 6), (4, 7), (7, 4)])
def test_knockout_of_a_low_rank_operator(shape: tuple[int, int]) -> None:
    """The route through the factors of ``LowRank``, with columns that repeat."""
    U, W, A = matrix(shape[0], 2, 1), matrix(shape[1], 2, 2), matrix(*shape)
    U, W = torch.cat([U, U[:, :1]], 1), torch.cat([W, W[:, :1]], 1)  # rank 2 of 3 columns
    s = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    low_rank = LowRank(U, s, W)
    projected = cs.knockout(Dense(A), low_rank, how="project")
    B = U @ torch.diag(s) @ W.T
    assert_relative(
        projected.dense(), pinv_projector(B) @ A @ pinv_projector(B.T), rtol=1e-12, what="project"
    )
    check_operator(cs.knockout(Dense(A), low_rank), A - B, rtol=EXACT[torch.float64])


def test_knockout_of_curvature() -> None:
    """H without G, and G without its class of top eigenvectors, on a real problem."""
    problem = BY_NAME["mse"].problem()
    H, G = reference("mse", "hessian"), reference("mse", "gauss_newton")
    values, vectors = torch.linalg.eigh(G)
    top = LowRank(vectors[:, -3:], values[-3:])
    P = torch.eye(len(G), dtype=G.dtype) - vectors[:, -3:] @ vectors[:, -3:].T
    op = cs.knockout(cs.GaussNewton(problem), top, how="project")
    assert op.psd
    check_operator(op, P @ G @ P, rtol=EXACT[torch.float64])
    check_operator(
        cs.knockout(cs.Hessian(problem), cs.GaussNewton(problem)), H - G, rtol=EXACT[torch.float64]
    )
    pairs = SimpleNamespace(values=values[-3:], vectors=vectors[:, -3:])
    check_operator(cs.deflate(cs.GaussNewton(problem), pairs), P @ G @ P, rtol=EXACT[torch.float64])


def test_curvature_in_sums_and_products() -> None:
    problem = BY_NAME["logistic"].problem()
    H, G = cs.Hessian(problem), cs.GaussNewton(problem)
    h, g = reference("logistic", "hessian"), reference("logistic", "gauss_newton")
    eye = torch.eye(len(h), dtype=h.dtype)
    damped = G + 0.1 * Identity(len(h), dtype=h.dtype, device="cpu")
    assert damped.psd
    check_operator(damped, g + 0.1 * eye, rtol=EXACT[torch.float64])
    check_operator(2.0 * H - 0.5 * G + H, 3 * h - 0.5 * g, rtol=EXACT[torch.float64])
    check_operator(H @ G, h @ g, rtol=EXACT[torch.float64])
    check_operator((H @ G).T, g @ h, rtol=EXACT[torch.float64])
    zero = (H - H) @ torch.ones(len(h), dtype=h.dtype)
    assert_relative(zero, torch.zeros_like(zero), rtol=1e-14, what="H − H", scale=float(h.norm()))


def test_errors() -> None:
    A, R = Dense(symmetric(4)), Dense(matrix(3, 4))
    with pytest.raises(cs.CurvescopeError, match=r"shapes must agree, got \(4, 4\) and \(3, 4\)"):
        A + R
    with pytest.raises(
        cs.CurvescopeError, match=r"inner dimensions must agree, got \(4, 4\) and \(3, 4\)"
    ):
        A @ R
    with pytest.raises(cs.CurvescopeError, match="share dtype and device"):
        A + Dense(symmetric(4, dtype=torch.float32))
    with pytest.raises(cs.CurvescopeError, match="factor must be a finite number, got nan"):
        A * float("nan")
    with pytest.raises(cs.CurvescopeError, match="needs an operator, got Tensor"):
        A + torch.eye(4, dtype=torch.float64)
    with pytest.raises(cs.CurvescopeError, match="'subtract', 'project', got 'erase'"):
        cs.knockout(A, A, how="erase")
    with pytest.raises(cs.CurvescopeError, match=r"shape of A, got \(3, 4\)"):
        cs.knockout(A, R)
    with pytest.raises(cs.CurvescopeError, match="no named blocks"):
        A.block("fc1")
    with pytest.raises(cs.CurvescopeError, match="real matrix"):
        Dense(torch.ones(3))
    with pytest.raises(cs.CurvescopeError, match="real vector"):
        Diagonal(torch.ones(2, 2))
    with pytest.raises(cs.CurvescopeError, match=r"same rank|\[m, r\]"):
        LowRank(matrix(4, 2), None, matrix(4, 3))
    with pytest.raises((cs.CurvescopeError, TypeError), match=r"Tensor|operand"):
        A - torch.eye(4, dtype=torch.float64)


def test_constructors_for_algebra_check_shapes() -> None:
    with pytest.raises(cs.CurvescopeError, match="inner dimensions"):
        Product(Dense(matrix(3, 4)), Dense(matrix(3, 4)))
    assert isinstance(Dense(matrix(3, 3)) + Dense(matrix(3, 3, 1)), Sum)
    assert isinstance(cs.knockout(Dense(symmetric(3)), symmetric(3), how="project"), Projected)
