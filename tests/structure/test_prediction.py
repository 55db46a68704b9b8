"""Theorem F.1 and its failure cases on spectra made for them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import curvescope as cs
from curvescope.structure.factors import KroneckerFactors
from curvescope.structure.overlaps import overlap
from curvescope.structure.prediction import overlap_prediction


def model(tau: Tensor, gamma: Tensor, seed: int, mean: Tensor | None = None) -> KroneckerFactors:
    """Factors with given spectra, random output eigenvectors and a shared first input direction."""
    g = torch.Generator().manual_seed(seed)
    r = torch.linalg.qr(torch.randn(len(tau), len(tau), generator=g).double())[0]
    start = torch.randn(len(gamma), len(gamma), generator=g).double()
    start[:, 0] = torch.ones(len(gamma)) if mean is None else mean
    t = torch.linalg.qr(start)[0]
    M, A = r @ torch.diag(tau.double()) @ r.T, t @ torch.diag(gamma.double()) @ t.T
    return KroneckerFactors("fc", M, A, t[:, 0], bias=False)


def geometric(first: float, last: float, count: int) -> Tensor:
    return torch.logspace(torch.tensor(first).log10(), torch.tensor(last).log10(), count)


def test_the_theorems_regime() -> None:
    """The condition holds: the line is the expected overlap of Kronecker eigenvectors."""
    tau, gamma = geometric(1.0, 0.2, 30), torch.cat([torch.tensor([10.0]), geometric(1.0, 0.1, 19)])
    tilted = torch.ones(20) + 0.5 * torch.randn(20, generator=torch.Generator().manual_seed(9))
    pairs = [(model(tau, gamma, 2 * s), model(tau, gamma, 2 * s + 1, tilted)) for s in range(8)]
    prediction = overlap_prediction(*pairs[0])
    assert prediction.verdict == "peak at m"
    assert prediction.peak == prediction.dimension == prediction.outputs == 30
    assert all(c.holds for c in prediction.conditions)
    torch.testing.assert_close(prediction.line, prediction.curve[:30])
    assert float(prediction.line[-1]) == pytest.approx(prediction.alignment)
    measured = torch.stack([overlap(a.operator().top(60), b.operator().top(60)) for a, b in pairs])
    error = measured.std(0) / 8**0.5
    assert bool(
        ((measured.mean(0) - prediction.curve[:60])[:30].abs() <= 4 * error[:30] + 1e-6).all()
    )
    assert int(measured.mean(0).argmax()) + 1 == 30
    assert "τ_m γ_1 = 2 > τ_1 γ_2 = 1" in prediction.reason


def test_early_peak() -> None:
    """fc2 of F-200² (DH fig. 24): nine large eigenvalues, and γ_2 a tenth of γ_1."""
    tau = torch.cat([geometric(1.0, 0.4, 9), geometric(0.02, 0.002, 191)])
    gamma = torch.cat([torch.tensor([10.0]), geometric(1.0, 0.01, 199)])
    prediction = overlap_prediction(model(tau, gamma, 0), model(tau, gamma, 1))
    assert prediction.verdict == "early peak"
    assert prediction.peak == prediction.dimension == 9
    assert not prediction.conditions[0].holds
    assert "only the first 9 of m = 200" in prediction.reason
    assert float(prediction.line[8]) == pytest.approx(9 / 200 * prediction.alignment)


def test_delayed_peak() -> None:
    """conv2 of VGG11-W200 (fig. 26): a heavy tail of the output Hessian."""
    tau = geometric(1.0, 0.1, 40)
    gamma = torch.cat([torch.tensor([10.0, 2.5]), geometric(0.3, 0.01, 58)])
    prediction = overlap_prediction(model(tau, gamma, 0), model(tau, gamma, 1))
    assert prediction.verdict == "delayed peak"
    assert prediction.dimension == int((tau * 10 > 2.5).sum()) < 40
    # All 40 eigenvectors on t_1 are there once those on t_2 above the last of them are passed.
    assert prediction.peak == 40 + int((2.5 * tau > 10 * tau[-1]).sum())
    assert "heavy tail" in prediction.reason


def test_output_layer_stays_flat() -> None:
    tau, gamma = geometric(1.0, 0.5, 9), torch.cat([torch.tensor([10.0]), geometric(1.0, 0.1, 9)])
    prediction = overlap_prediction(model(tau, gamma, 0), model(tau, gamma, 1), output_layer=True)
    assert prediction.verdict == "flat up to m"
    torch.testing.assert_close(prediction.line, torch.full((9,), prediction.alignment).double())
    torch.testing.assert_close(prediction.curve[:9], prediction.line)
    assert float(prediction.curve[9]) < prediction.alignment


def test_one_input_and_one_output() -> None:
    one = KroneckerFactors("fc", torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), bias=False)
    assert overlap_prediction(one, one).verdict == "peak at m"


def test_refusals() -> None:
    a = model(torch.ones(2), torch.ones(3), 0)
    with pytest.raises(cs.CurvescopeError, match="must have one shape, got 2 × 3 and 2 × 4"):
        overlap_prediction(a, model(torch.ones(2), torch.ones(4), 0))
    biased = KroneckerFactors("fc", torch.eye(2), torch.eye(3), torch.ones(3), bias=True)
    with pytest.raises(
        cs.CurvescopeError, match=r"overlap_prediction\(second\): needs factors with"
    ):
        overlap_prediction(a, biased)
