"""The battery that every operator passes: ``check_operator(op, dense)`` against its dense matrix.

All helpers raise; none returns a verdict. Errors are measured as ``‖op V − dense V‖ / scale`` with
``scale = ‖dense V‖`` unless the caller gives the norm of a larger matrix of which it is a part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from tests.tolerances import REORDERED

COLUMNS = 3


def random_block(
    rows: int, columns: int, dtype: torch.dtype, device: Any = "cpu", seed: int = 0
) -> Tensor:
    """Gaussian columns from a fixed seed, the same numbers in every dtype."""
    g = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(rows, columns, generator=g).to(device=device, dtype=dtype)


def assert_relative(
    actual: Tensor, expected: Tensor, *, rtol: float, what: str, scale: float | None = None
) -> None:
    """Raise unless ``‖actual − expected‖ ≤ rtol · scale``; ``scale`` defaults to ``‖expected‖``."""
    if actual.shape != expected.shape:
        msg = f"{what}: shape {list(actual.shape)} instead of {list(expected.shape)}"
        raise AssertionError(msg)
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    scale = float(expected.norm()) if scale is None else scale
    error = float((actual - expected).norm())
    if not error <= rtol * scale:  # also catches NaN
        relative = error / scale if scale else float("inf")
        msg = f"{what}: relative error {relative:.2e} > {rtol:.0e} (absolute {error:.2e})"
        raise AssertionError(msg)


def check_products(op: Any, dense: Tensor, *, rtol: float, scale: float | None = None) -> None:
    """Products with a vector and a block agree with the dense matrix; dtype and device stay."""
    V = random_block(op.shape[1], COLUMNS, op.dtype, op.device)
    expected = dense.double() @ V.cpu().double()
    scale_of_block = None if scale is None else scale * float(V.double().norm()) / V.shape[0] ** 0.5
    scale_of_vector = (
        None if scale is None else scale * float(V[:, 0].double().norm()) / V.shape[0] ** 0.5
    )
    block, vector = op @ V, op @ V[:, 0]
    assert_relative(block, expected, rtol=rtol, what=f"{op} @ [n, {COLUMNS}]", scale=scale_of_block)
    assert_relative(vector, expected[:, 0], rtol=rtol, what=f"{op} @ [n]", scale=scale_of_vector)
    for result in (block, vector):
        if result.dtype != op.dtype or result.device != op.device or result.requires_grad:
            msg = f"{op}: {result.dtype}, {result.device}, requires_grad={result.requires_grad}"
            raise AssertionError(msg)


def check_operator(
    op: Any, dense: Tensor, *, rtol: float, scale: float | None = None, chunked: Any = None
) -> None:
    """The whole battery. ``chunked`` is the same operator built to push fewer columns at a time."""
    if tuple(op.shape) != tuple(dense.shape):
        msg = f"{op}: shape {op.shape}, the dense matrix has {tuple(dense.shape)}"
        raise AssertionError(msg)
    check_products(op, dense, rtol=rtol, scale=scale)
    _check_declared(op, dense, rtol=rtol)
    _check_linear(op)
    _check_repeatable_and_pure(op)
    _check_strides(op)
    _check_transpose(op, dense, rtol=rtol, scale=scale)
    _check_conversions(op, dense, rtol=rtol, scale=scale)
    if chunked is not None:
        V = random_block(op.shape[1], COLUMNS + 2, op.dtype, op.device, seed=5)
        assert_relative(
            chunked @ V, op @ V, rtol=REORDERED[op.dtype], what=f"{op} in chunks of columns"
        )
    check_errors(op)


def _check_declared(op: Any, dense: Tensor, *, rtol: float) -> None:
    """``symmetric`` and ``psd`` are facts about the dense matrix."""
    dense, size = dense.double(), float(dense.double().norm())
    if op.symmetric and not float((dense - dense.T).norm()) <= rtol * size:
        msg = f"{op} declares itself symmetric; the dense matrix is not"
        raise AssertionError(msg)
    if op.psd:
        smallest = float(torch.linalg.eigvalsh((dense + dense.T) / 2)[0])
        if not smallest >= -rtol * size:
            msg = f"{op} declares itself psd; the dense matrix has the eigenvalue {smallest:.2e}"
            raise AssertionError(msg)
    if op.psd and not op.symmetric:
        msg = f"{op} is psd but not symmetric"
        raise AssertionError(msg)


def _check_linear(op: Any) -> None:
    X = random_block(op.shape[1], COLUMNS, op.dtype, op.device, seed=1)
    Y = random_block(op.shape[1], COLUMNS, op.dtype, op.device, seed=2)
    left, right = op @ X, op @ Y
    combined, apart = op @ (0.75 * X - 1.5 * Y), 0.75 * left - 1.5 * right
    size = float(left.double().norm() + right.double().norm())
    assert_relative(
        combined, apart, rtol=10 * REORDERED[op.dtype], what=f"{op}: linearity", scale=size
    )
    zero = op @ torch.zeros_like(X[:, 0])
    if zero.abs().max() != 0:
        msg = f"{op} @ 0 is not 0"
        raise AssertionError(msg)


def _check_repeatable_and_pure(op: Any) -> None:
    """The same product twice is identical and leaves its argument and old results alone."""
    X = random_block(op.shape[1], COLUMNS, op.dtype, op.device, seed=3).requires_grad_()
    before = X.detach().clone()
    first = op @ X
    kept = first.clone()
    op @ random_block(op.shape[1], 1, op.dtype, op.device, seed=4)[:, 0]
    second = op @ X
    torch.testing.assert_close(
        second, kept, rtol=0, atol=0, msg=lambda m: f"{op} applied twice: {m}"
    )
    torch.testing.assert_close(
        first, kept, rtol=0, atol=0, msg=lambda m: f"{op} wrote into an old result: {m}"
    )
    torch.testing.assert_close(
        X.detach(), before, rtol=0, atol=0, msg=lambda m: f"{op} changed its argument: {m}"
    )
    first.zero_()  # a result belongs to the caller
    torch.testing.assert_close(
        op @ X, kept, rtol=0, atol=0, msg=lambda m: f"{op} handed out its own storage: {m}"
    )


def _check_strides(op: Any) -> None:
    """Views are as good as contiguous tensors; a block of one column is the vector."""
    X = random_block(op.shape[1], COLUMNS, op.dtype, op.device, seed=6)
    expected = op @ X
    transposed = X.T.contiguous().T
    rtol = REORDERED[op.dtype]
    assert_relative(op @ transposed, expected, rtol=rtol, what=f"{op} @ transposed view")
    assert_relative(
        op @ X[:, 1],
        expected[:, 1],
        rtol=rtol,
        what=f"{op} @ strided column",
        scale=float(expected.norm()),
    )
    one = op @ X[:, 1:2]
    assert_relative(
        one, expected[:, 1:2], rtol=rtol, what=f"{op} @ [n, 1]", scale=float(expected.norm())
    )
    ones = torch.ones((), dtype=op.dtype, device=op.device)
    assert_relative(
        op @ ones.expand(op.shape[1]),
        op @ ones.repeat(op.shape[1]),
        rtol=rtol,
        what=f"{op} @ expanded",
    )


def _check_transpose(op: Any, dense: Tensor, *, rtol: float, scale: float | None) -> None:
    if tuple(op.T.shape) != (op.shape[1], op.shape[0]):
        msg = f"{op}.T has shape {op.T.shape}"
        raise AssertionError(msg)
    if op.T is not op:
        check_products(op.T, dense.T, rtol=rtol, scale=scale)
    x = random_block(op.shape[1], 1, op.dtype, op.device, seed=7)[:, 0]
    y = random_block(op.shape[0], 1, op.dtype, op.device, seed=8)[:, 0]
    forth, back = op @ x, op.T @ y
    size = float(y.norm() * forth.norm() + back.norm() * x.norm())
    rtol = 10 * REORDERED[op.dtype]
    assert_relative(y @ forth, back @ x, rtol=rtol, what=f"{op}: adjoint", scale=size)


def _check_conversions(op: Any, dense: Tensor, *, rtol: float, scale: float | None) -> None:
    matrix = op.dense()
    assert_relative(matrix, dense, rtol=rtol, what=f"{op}.dense()", scale=scale)
    if matrix.dtype != op.dtype or matrix.device != op.device:
        msg = f"{op}.dense() is {matrix.dtype} on {matrix.device}"
        raise AssertionError(msg)
    scipy_op = op.to_scipy()
    X = random_block(op.shape[1], COLUMNS, op.dtype, "cpu", seed=9)
    Y = random_block(op.shape[0], COLUMNS, op.dtype, "cpu", seed=10)
    block = op @ X.to(op.device)
    products = {
        "matmat": (scipy_op @ X.numpy(), block),
        "matvec": (scipy_op @ X[:, 0].numpy(), block[:, 0]),
        "rmatvec": (scipy_op.T @ Y[:, 0].numpy(), op.T @ Y[:, 0].to(op.device)),
    }
    for name, (ours, expected) in products.items():
        if not isinstance(ours, np.ndarray) or ours.dtype != expected.cpu().numpy().dtype:
            msg = f"{op}.to_scipy() {name} gives {type(ours).__name__} {getattr(ours, 'dtype', '')}"
            raise AssertionError(msg)
        assert_relative(
            torch.from_numpy(ours),
            expected,
            rtol=REORDERED[op.dtype],
            what=f"{op}.to_scipy() {name}",
        )


def check_errors(op: Any) -> None:
    """Vectors that do not fit are refused with the rule and what was given."""
    n = op.shape[1]
    other = torch.float32 if op.dtype == torch.float64 else torch.float64
    vector = torch.zeros(n, dtype=op.dtype, device=op.device)
    with pytest.raises(CurvescopeError, match=rf"\[{n}\].*got \[{n + 1}\]"):
        op @ torch.zeros(n + 1, dtype=op.dtype, device=op.device)
    with pytest.raises(CurvescopeError, match=rf"\[{n}, k\].*got \[{n + 2}, 2\]"):
        op @ torch.zeros(n + 2, 2, dtype=op.dtype, device=op.device)
    with pytest.raises(CurvescopeError, match=rf"got \[{n}, 1, 1\]"):
        op @ vector[:, None, None]
    with pytest.raises(CurvescopeError, match=r"got \[\]"):
        op @ torch.zeros((), dtype=op.dtype, device=op.device)
    with pytest.raises(CurvescopeError, match=rf"{op.dtype}.*got {other}"):
        op @ vector.to(other)
    with pytest.raises(CurvescopeError, match=r"meta"):
        op @ torch.zeros(n, dtype=op.dtype, device="meta")
    array = op @ np.zeros(n)
    if not isinstance(array, np.ndarray) or array.shape != (op.shape[0],):
        raise AssertionError(f"{op} @ array gives {type(array).__name__}")
    with pytest.raises(CurvescopeError, match=r"needs a torch\.Tensor or a NumPy array, got str"):
        op @ "vector"  # type: ignore[call-overload]
