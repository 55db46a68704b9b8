"""The numbers of DH's tables 6 to 8 on data where they are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.structure.autocorrelation import (
    autocorrelation_structure,
    autocorrelation_table,
)
from curvescope.structure.factors import kronecker_factors


def structure_of(x: Tensor, **settings: bool):
    model = nn.Linear(x.shape[1], 2).double()
    problem = cs.Problem(model, (x, torch.zeros(len(x)).long()))
    return autocorrelation_structure(kronecker_factors(problem, **settings)[""])


def test_against_numbers_from_the_samples() -> None:
    x = torch.rand(30, 5).double() + torch.tensor([1.0, 2, 0, 0, 1]).double()
    for bias in (False, True):  # the bias is left out
        ours = structure_of(x, bias=bias)
        A, mean = x.T @ x / 30, x.mean(0)
        values, vectors = torch.linalg.eigh(A)
        assert ours.alignment == pytest.approx(float((vectors[:, -1] @ mean) ** 2 / (mean @ mean)))
        assert ours.spectral_ratio == pytest.approx(float(values[-1] / values[-2]))
        covariance = torch.linalg.eigvalsh(torch.cov(x.T, correction=0))[-1]
        assert ours.dominance == pytest.approx(float(mean @ mean / covariance))
        torch.testing.assert_close(ours.eigenvalues, values.flip(0))
        assert ours.spectral_ratio >= ours.dominance - 1  # DH eq. 52


def test_convolution_uses_the_mean_of_the_patches() -> None:
    x = torch.rand(6, 2, 5, 5).double() + 0.5
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)).double()
    problem = cs.Problem(model, (x, torch.zeros(6).long()))
    ours = autocorrelation_structure(kronecker_factors(problem)["0"])
    X = nn.functional.unfold(x, 3)  # [6, n, T]
    A, mean = torch.einsum("bnt,bkt->nk", X, X) / 6, X.mean(0)
    u, s, _ = torch.linalg.svd(mean)
    v = torch.linalg.eigh(A)[1][:, -1]
    assert ours.alignment == pytest.approx(float((v @ u[:, 0]) ** 2))
    covariance = torch.linalg.eigvalsh(A - mean @ mean.T)[-1]
    assert ours.dominance == pytest.approx(float(s[0] ** 2 / covariance))


def test_limits() -> None:
    constant = structure_of(torch.ones(4, 3).double())  # rank one: nothing but the mean
    assert constant.alignment == pytest.approx(1.0)
    assert constant.spectral_ratio == constant.dominance == math.inf
    centered = structure_of(
        torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]).double()
    )
    assert centered.alignment == 0.0
    assert centered.dominance == 0.0
    assert centered.spectral_ratio == pytest.approx(4.0)
    assert structure_of(torch.ones(2, 1).double()).spectral_ratio == math.inf  # one input


def test_table() -> None:
    found = [structure_of(torch.rand(10, 3).double() + i) for i in range(3)]
    table = autocorrelation_table(found)
    assert table.layers == 3
    assert table.alignment.mean == pytest.approx(sum(s.alignment for s in found) / 3)
    assert table.spectral_ratio.max == max(s.spectral_ratio for s in found)
    assert table.dominance.min == min(s.dominance for s in found)
    with pytest.raises(cs.CurvescopeError, match="at least one number"):
        autocorrelation_table([])
