"""KFAC and CFAC against matrices written out, in the regimes where they are exact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure
from curvescope.structure.class_factors import cfac, layer_approximations, quadratic_forms
from curvescope.structure.factors import kronecker_factors
from tests.cases import BY_NAME
from tests.conformance import assert_relative, check_operator

F64 = torch.float64


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def data(samples: int = 11) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(samples, 5, dtype=F64, generator=g)
    return X, torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2])[:samples]


def extended(model: nn.Module, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``h: [N, 5]``, ``δ: [N, C, 4]``, ``p: [N, C]`` and ``g: [N, C, 20]`` of the first layer."""
    weight = model.get_parameter("0.weight")
    errors, p, g = [], [], []
    for x in X:
        a = model[0](x)  # type: ignore[index]
        z = model[2](model[1](a))  # type: ignore[index]
        p.append(torch.softmax(z, 0).detach())
        rows = [
            torch.autograd.grad(F.cross_entropy(z, torch.tensor(c)), [a, weight], retain_graph=True)
            for c in range(3)
        ]
        errors.append(torch.stack([r[0] for r in rows]))
        g.append(torch.stack([r[1].flatten() for r in rows]))
    return X, torch.stack(errors), torch.stack(p), torch.stack(g)


def test_cfac_is_the_sum_over_classes() -> None:
    model, (X, y) = mlp(), data()
    h, d, p, _ = extended(model, X)
    expected = torch.zeros(20, 20, dtype=F64)
    for c in range(3):
        own = y == c
        H_c = h[own].T @ h[own] / own.sum()
        D_c = torch.einsum("ik,ikm,ikn->mn", p[own] / len(X), d[own], d[own])
        expected += torch.kron(D_c, H_c)
    check_operator(cfac(Problem(model, (X, y)))["0"], expected, rtol=1e-12)


def test_where_they_are_exact(generator: torch.Generator) -> None:
    model, (X, y) = mlp(), data()
    constant = X[[0, 0, 0, 0, 0, 5, 5, 5, 5, 9, 9]]  # the same input for all of a class
    problem = Problem(model, (constant, y))
    for name, A in cfac(problem).items():
        G = GaussNewton(problem).block(f"{name}.weight").dense()
        assert_relative(A.dense(), G, rtol=1e-12, what=f"CFAC of {name}")
    found = layer_approximations(problem, generator=generator)["0"]
    assert found.cfac_error.frobenius < 1e-7
    assert found.cfac_error.distance < 1e-10
    assert found.cfac_error.outliers < 1e-10
    assert found.kfac_error.frobenius > 0.01
    torch.testing.assert_close(found.class_cosines, torch.ones(3, dtype=F64))
    torch.testing.assert_close(found.cross_cosines, torch.ones(3, 3, dtype=F64))
    one = layer_approximations(Problem(model, (X[:1], y[:1])), generator=generator)["2"]
    assert one.kfac_error.frobenius < 1e-7
    assert one.cfac_error.frobenius < 1e-7


def test_errors_and_cosines_against_dense_matrices(generator: torch.Generator) -> None:
    model, (X, y) = mlp(), data()
    problem = Problem(model, (X, y))
    found = layer_approximations(problem, layers="0", generator=generator)["0"]
    G = GaussNewton(problem).block("0.weight").dense()
    kfac, by_class = kronecker_factors(problem)["0"].operator().dense(), cfac(problem)["0"].dense()
    for ours, A in ((found.kfac_error, kfac), (found.cfac_error, by_class)):
        assert ours.frobenius == pytest.approx(float((G - A).norm() / G.norm()), rel=1e-10)
        top = [torch.linalg.eigvalsh(M).flip(0)[:3] for M in (G, A)]
        assert ours.outliers == pytest.approx(float((top[0] / top[1]).log().abs().mean()), rel=1e-9)
        spectra = [torch.log(torch.linalg.eigvalsh(M).abs() + 1e-5) for M in (G, A)]
        expected = float((spectra[0].sort().values - spectra[1].sort().values).abs().mean())
        assert ours.distance == pytest.approx(expected, rel=1e-6)
    h, d, p, g = extended(model, X)
    for c in range(3):
        own = y == c
        for k in range(3):
            share = (p[own, k] / p[own, k].sum())[:, None]
            mean, product = (
                (share * g[own, k]).sum(0),
                torch.outer((share * d[own, k]).sum(0), h[own].mean(0)),
            )
            cosine = F.cosine_similarity(mean, product.flatten(), 0)
            assert float(found.cross_cosines[c, k]) == pytest.approx(float(cosine), rel=1e-10)
        others = [k for k in range(3) if k != c]
        w = p[own][:, others]
        w = (w / w.sum())[..., None]
        mean = (w * g[own][:, others]).sum((0, 1))
        product = torch.outer((w * d[own][:, others]).sum((0, 1)), h[own].mean(0))
        cosine = F.cosine_similarity(mean, product.flatten(), 0)
        assert float(found.class_cosines[c]) == pytest.approx(float(cosine), rel=1e-10)


def test_convolutions(generator: torch.Generator) -> None:
    case = BY_NAME["conv-stride-padding"]
    problem = case.problem()
    layer = linear_layer_of(problem)
    found = layer_approximations(problem, layers=layer, generator=generator)[layer]
    G = GaussNewton(problem).block(f"{layer}.weight").dense()
    A = cfac(problem, layers=layer)[layer].dense()
    assert found.cfac_error.frobenius == pytest.approx(float((G - A).norm() / G.norm()), rel=1e-9)
    assert bool((found.cross_cosines.abs() <= 1 + 1e-12).all())


@pytest.mark.parametrize("positions", [1, 3, 40], ids=["one", "few", "many"])
def test_inner_products_with_rows_written_out(positions: int) -> None:
    """``Σ gᵀ (A ⊗ B) g``; many positions take the form with rows written out, few the other."""
    g = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=F64, generator=g)

    e, x = random(4, 2, positions, 3), random(4, positions, 5)
    roots = [(random(3, 3), random(5, 5)) for _ in range(2)]
    factors = [(a @ a.T, b @ b.T) for a, b in roots]
    rows = torch.einsum("bktm,btn->bkmn", e, x).reshape(8, 15)
    expected = [float((rows @ torch.kron(A, B) * rows).sum()) for A, B in factors]
    assert quadratic_forms(e, x, factors).tolist() == pytest.approx(expected, rel=1e-12)


def linear_layer_of(problem: Problem) -> str:
    return next(n for n, m in problem.model.named_modules() if isinstance(m, nn.Conv2d))


def test_lanczos_where_the_matrices_are_large(generator: torch.Generator) -> None:
    model, (X, y) = mlp(), data()
    problem = Problem(model, (X, y))
    exact = layer_approximations(problem, layers="0", generator=generator)["0"]
    found = layer_approximations(problem, layers="0", generator=generator, limit=5, probes=40)["0"]
    assert isinstance(exact.exact, ExactSpectrum)
    assert isinstance(found.exact, SpectralMeasure)
    assert isinstance(found.cfac, SpectralMeasure)
    assert isinstance(found.kfac, ExactSpectrum)
    assert found.cfac_error.outliers == pytest.approx(exact.cfac_error.outliers, abs=1e-4)
    assert found.kfac_error.distance == pytest.approx(exact.kfac_error.distance, abs=0.3)


def test_a_class_without_examples(generator: torch.Generator) -> None:
    model, (X, y) = mlp(), data(9)  # nothing of class 2
    found = layer_approximations(Problem(model, (X, y)), layers="0", generator=generator)["0"]
    assert bool(torch.isfinite(found.cross_cosines[:2]).all())
    assert bool(found.cross_cosines[2].isnan().all())
    assert found.cfac_error.frobenius < 1


def test_what_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(CurvescopeError, match="needs one class label for each sample"):
        cfac(BY_NAME["cross_entropy-positions"].problem())
