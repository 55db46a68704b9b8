"""Exact spectra: primal, dual, refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from curvescope._checks import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import Diagonal
from curvescope.spectra import exact_spectrum
from tests.spectra.matrices import F64, Counting, hessian_like, rotated, seeded


class Factored(LinearOperator):
    """``B Bᵀ`` with a Gram form."""

    def __init__(self, B: Tensor) -> None:
        n = B.shape[0]
        super().__init__((n, n), dtype=B.dtype, device=B.device, psd=True)
        self.B = B

    def _matmat(self, X: Tensor) -> Tensor:
        return self.B @ (self.B.T @ X)

    def gram(self) -> Tensor:
        return self.B.T @ self.B


def test_primal() -> None:
    eigenvalues = hessian_like(60, torch.float32)
    A = Counting(rotated(eigenvalues))
    spectrum = exact_spectrum(A)
    assert (spectrum.form, spectrum.products, spectrum.zeros) == ("primal", 60, 0)
    assert A.columns == 60
    assert spectrum.values.dtype == F64
    torch.testing.assert_close(spectrum.values.flip(0), eigenvalues.double(), atol=1e-5, rtol=0)


def test_dual_has_the_same_spectrum() -> None:
    A = Factored(torch.randn(50, 8, dtype=F64, generator=seeded()))
    dual = exact_spectrum(A)
    assert (dual.form, dual.zeros, dual.dimension, dual.products) == ("dual", 42, 50, 0)
    primal = torch.linalg.eigvalsh(A.dense())
    torch.testing.assert_close(dual.values, primal[-8:], atol=1e-10, rtol=0)
    at_zero = torch.tensor([-1.0, 0.0, 1e9])
    assert dual.cdf(at_zero).tolist() == [0.0, 42 / 50, 1.0]
    # a Gram form that is larger than the matrix is of no use
    wide = Factored(torch.randn(5, 8, dtype=F64, generator=seeded()))
    assert exact_spectrum(wide).form == "primal"


def test_too_large_says_the_size_and_what_else_to_use() -> None:
    with pytest.raises(
        CurvescopeError, match=r"100 × 100 entries .* use spectral_measure or eigen"
    ):
        exact_spectrum(Diagonal(torch.ones(100)), limit=99)
    big = Factored(torch.randn(50, 30, dtype=F64, generator=seeded()))
    with pytest.raises(CurvescopeError, match="its Gram form 30 × 30"):
        exact_spectrum(big, limit=20)
