"""Exact spectra: primal, dual, refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.operators.simple import Diagonal
from curvescope.spectra import ExactSpectrum, exact_spectrum, spectral_measure
from curvescope.spectra.exact import log_distance
from tests.spectra.matrices import F64, Counting, hessian_like, rotated, seeded


class Gram:
    def __init__(self, B: Tensor) -> None:
        self._B, self.size, self.made = B, B.shape[1], 0

    def matrix(self) -> Tensor:
        self.made += 1
        return self._B.T @ self._B


class Factored(LinearOperator):
    """``B Bᵀ`` with a Gram form."""

    def __init__(self, B: Tensor) -> None:
        n = B.shape[0]
        super().__init__((n, n), dtype=B.dtype, device=B.device, psd=True)
        self.B, self.form = B, Gram(B)

    def _matmat(self, X: Tensor) -> Tensor:
        return self.B @ (self.B.T @ X)

    def dual(self) -> Gram:
        return self.form


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
    with pytest.raises(CurvescopeError, match=r"its Gram form 30 × 30.*take fewer samples, use"):
        exact_spectrum(big, limit=20)
    assert big.form.made == 0  # it is known beforehand


def test_more_rows_than_dimensions() -> None:
    B = torch.randn(5, 8, dtype=F64, generator=seeded())
    spectrum = ExactSpectrum.of_gram(B.T @ B, 5)
    assert (len(spectrum.values), spectrum.zeros) == (5, 0)
    torch.testing.assert_close(spectrum.values, torch.linalg.eigvalsh(B @ B.T))


def test_the_distance_between_spectra() -> None:
    a = exact_spectrum(Diagonal(torch.tensor([1.0, 2.0, 4.0, 0.0], dtype=F64)))
    b = exact_spectrum(Diagonal(torch.tensor([2.0, 4.0, 8.0, 0.0], dtype=F64)))
    assert log_distance(a, a) == 0.0
    # three of four eigenvalues move by log 2
    assert log_distance(a, b, eps=1e-9) == pytest.approx(0.75 * math.log(2), rel=1e-6)
    assert log_distance(b, a, eps=1e-9) == pytest.approx(0.75 * math.log(2), rel=1e-6)
    with pytest.raises(CurvescopeError, match="eps must be positive"):
        log_distance(a, b, eps=0.0)


def test_a_lanczos_spectrum_is_near_the_exact_one() -> None:
    A = rotated(hessian_like(200, F64).abs() + 1e-3)
    exact = exact_spectrum(A)
    measure = spectral_measure(A, steps=200, probes=20, generator=seeded())
    near = log_distance(exact, measure)
    coarse = log_distance(exact, spectral_measure(A, steps=6, probes=20, generator=seeded()))
    assert near < 0.1
    assert near < coarse
    taken_out = spectral_measure(A, steps=100, probes=20, deflate=5, generator=seeded())
    assert log_distance(exact, taken_out) < 0.1


def test_densities() -> None:
    A = Factored(torch.randn(50, 8, dtype=F64, generator=seeded()))
    spectrum = exact_spectrum(A)
    for curve in (spectrum.density(), spectrum.log_density(1e-3)):
        assert curve.mass == pytest.approx(1.0, abs=1e-6)
    # a grid value is the mean of the mixture over its cell
    curve = spectrum.density(20_000, sigma=0.7)
    points = torch.cat([spectrum.values, torch.zeros(42, dtype=F64)])
    normal = torch.exp(-0.5 * ((curve.grid[:, None] - points) / 0.7) ** 2) / (
        0.7 * math.sqrt(2 * math.pi)
    )
    torch.testing.assert_close(curve.values, normal.mean(1), atol=1e-5, rtol=0)
    # it looks like a Lanczos curve of the same width
    measure = spectral_measure(A, steps=50, probes=400, generator=seeded())
    theirs = measure.density(kappa=1.2)
    ours = spectrum.density(4000, sigma=theirs.sigma)
    at = torch.searchsorted(ours.grid, theirs.grid).clamp(max=len(ours.grid) - 1)
    assert float((ours.values[at] - theirs.values).abs().mean() / theirs.values.mean()) < 0.2
    with pytest.raises(CurvescopeError, match="sigma must be positive"):
        spectrum.density(sigma=0.0)
    with pytest.raises(CurvescopeError, match="eps must be positive"):
        spectrum.log_density(0.0)
