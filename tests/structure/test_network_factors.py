"""KFAC and CFAC of whole networks against matrices written out sample by sample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.errors import CurvescopeError
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.khatri_rao import KhatriRaoOperator, LayerPlace
from curvescope.structure import (
    cfac,
    class_structure,
    kronecker_factors,
    layer_approximations,
    mean_cosines,
    network_cfac,
    network_kfac,
)
from tests.cases import classes, convert
from tests.conformance import assert_relative, check_operator

F64 = torch.float64
WEIGHTS = ["0.weight", "2.weight", "4.weight"]


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False), nn.Tanh(), nn.Linear(2, 3)
    ).double()


def data(labels: list[int]) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(len(labels), 3, dtype=F64, generator=g), torch.tensor(labels)


UNBALANCED = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 1]


def passed(model: nn.Sequential, x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Inputs ``h^l`` of the three layers, ``δ^l: [C, m_l]`` for each label, and ``p``."""
    a0 = model[0](x)
    a1 = model[2](torch.tanh(a0))
    z = model[4](torch.tanh(a1))
    inputs = [x, torch.tanh(a0).detach(), torch.tanh(a1).detach()]
    errors = [
        torch.autograd.grad(F.cross_entropy(z, torch.tensor(c)), [a0, a1, z], retain_graph=True)
        for c in range(3)
    ]
    by_layer = [torch.stack([e[layer] for e in errors]) for layer in range(3)]
    return inputs, by_layer, torch.softmax(z, 0).detach()


OUTPUTS, INPUTS = [4, 2, 3], [3, 4, 2]


def side_by_side(errors: Tensor, inputs: list[Tensor]) -> Tensor:
    """``δ ⊙ h`` of two vectors."""
    return torch.cat([torch.kron(a, b) for a, b in zip(errors.split(OUTPUTS), inputs, strict=True)])


def khatri_rao(D: Tensor, H: Tensor) -> Tensor:
    """``D ⊙ H`` block by block."""
    rows = []
    for band, strip in zip(D.split(OUTPUTS), H.split(INPUTS), strict=True):
        pairs = zip(band.split(OUTPUTS, 1), strip.split(INPUTS, 1), strict=True)
        rows.append(torch.cat([torch.kron(d, h) for d, h in pairs], 1))
    return torch.cat(rows)


def moments(model: nn.Sequential, X: Tensor) -> tuple[Tensor, Tensor]:
    """``Δ`` and ``H`` over the layers side by side, the means over ``X``."""
    D, H = torch.zeros(9, 9, dtype=F64), torch.zeros(9, 9, dtype=F64)
    for x in X:
        inputs, errors, p = passed(model, x)
        h, d = torch.cat(inputs), torch.cat(errors, 1)
        H += torch.outer(h, h) / len(X)
        D += torch.einsum("c,cm,cn->mn", p, d, d) / len(X)
    return D, H


@pytest.mark.parametrize("batch_size", [None, 4])
def test_kfac_against_its_definition(batch_size: int | None) -> None:
    model, (X, y) = mlp(), data(UNBALANCED)
    problem = cs.Problem(model, (X, y), batch_size=batch_size)
    ours, expected = network_kfac(problem), khatri_rao(*moments(model, X))
    check_operator(ours, expected, rtol=1e-12)
    for name in ("0", "2", "4"):
        alone = kronecker_factors(problem)[name].operator().dense()
        assert_relative(ours.block(name).dense(), alone, rtol=1e-12, what=f"block {name}")
        assert_relative(ours.block(f"{name}.weight").dense(), alone, rtol=1e-12, what=name)


def test_cfac_against_its_definition() -> None:
    model, (X, y) = mlp(), data(UNBALANCED)
    problem = cs.Problem(model, (X, y))
    ours = network_cfac(problem)
    expected = torch.zeros(26, 26, dtype=F64)
    for c in range(3):
        own = y == c
        expected += float(own.sum()) / len(y) * khatri_rao(*moments(model, X[own]))
    check_operator(ours, expected, rtol=1e-12)
    for name, alone in cfac(problem).items():
        assert_relative(ours.block(name).dense(), alone.dense(), rtol=1e-12, what=f"block {name}")


@pytest.mark.parametrize("make", [network_kfac, network_cfac])
def test_the_gram_form_has_the_spectrum(make: object) -> None:
    """Few samples, low ranks: fewer rows than weights, and the same eigenvalues."""
    assert callable(make)
    model = nn.Sequential(
        nn.Linear(12, 10, bias=False), nn.Tanh(), nn.Linear(10, 3, bias=False)
    ).double()
    X = torch.randn(4, 12, dtype=F64, generator=torch.Generator().manual_seed(0))
    A = make(cs.Problem(model, (X, torch.tensor([0, 1, 2, 0]))))
    dual = A.dual()
    assert dual.size < A.shape[0] == 150
    dense = torch.linalg.eigvalsh(A.dense())
    assert_relative(
        torch.linalg.eigvalsh(dual.matrix()), dense[-dual.size :], rtol=1e-12, what="spectrum"
    )
    spectrum = cs.exact_spectrum(A)
    assert spectrum.form == "dual"
    assert spectrum.zeros == 150 - len(spectrum.values)
    top = dense[-len(spectrum.values) :]
    assert_relative(spectrum.values, top, rtol=1e-12, what="exact_spectrum")


def test_where_they_are_the_whole_gauss_newton_matrix() -> None:
    """Also between layers: one input a class for CFAC, a single input for KFAC."""
    model, (X, y) = mlp(), data(UNBALANCED)
    constant = X[[0, 0, 0, 0, 0, 5, 5, 5, 8, 8, 5]]
    problem = cs.Problem(model, (constant, y))
    G = GaussNewton(problem.restrict(WEIGHTS)).dense()
    assert_relative(network_cfac(problem).dense(), G, rtol=1e-12, what="CFAC")
    assert not torch.allclose(network_kfac(problem).dense(), G, rtol=1e-3)
    one = cs.Problem(model, (X[:1], y[:1]))
    G = GaussNewton(one.restrict(WEIGHTS)).dense()
    assert_relative(network_kfac(one).dense(), G, rtol=1e-12, what="KFAC")


def test_kfac_for_the_mean_square() -> None:
    model, X = mlp(), data(UNBALANCED)[0]
    targets = torch.randn(11, 3, dtype=F64, generator=torch.Generator().manual_seed(2))
    problem = cs.Problem(model, (X, targets), loss="mse")
    D, H = torch.zeros(9, 9, dtype=F64), torch.zeros(9, 9, dtype=F64)
    for x in X:
        a0 = model[0](x)
        a1 = model[2](torch.tanh(a0))
        z = model[4](torch.tanh(a1))
        h = torch.cat([x, torch.tanh(a0), torch.tanh(a1)]).detach()
        rows = [torch.cat(torch.autograd.grad(c, [a0, a1, z], retain_graph=True)) for c in z]
        J = torch.stack(rows)
        D, H = D + 2 / 3 * J.T @ J / 11, H + torch.outer(h, h) / 11
    check_operator(network_kfac(problem), khatri_rao(D, H), rtol=1e-12)


def test_the_order_is_that_of_the_parameters_and_some_layers_will_do() -> None:
    model, (X, y) = mlp(), data(UNBALANCED)
    problem = cs.Problem(model, (X, y))
    whole = network_kfac(problem).dense()
    part = network_kfac(problem, layers=["4", "0"])
    assert [place.name for place in part.layers] == ["0", "4"]
    keep = [*range(12), *range(20, 26)]
    assert_relative(part.dense(), whole[keep][:, keep], rtol=1e-12, what="two layers")


def test_a_weight_that_is_stored_transposed() -> None:
    g = torch.Generator().manual_seed(0)
    M, A = torch.randn(5, 5, dtype=F64, generator=g), torch.randn(6, 6, dtype=F64, generator=g)
    M, A = M @ M.T, A @ A.T
    places = [LayerPlace("a", 2, 4), LayerPlace("b", 3, 2)]
    plain = KhatriRaoOperator([(0.5, M, A)], places)
    turned = KhatriRaoOperator([(0.5, M, A)], [LayerPlace("a", 2, 4, transposed=True), places[1]])
    order = [*torch.arange(8).reshape(2, 4).T.flatten().tolist(), *range(8, 14)]
    check_operator(turned, plain.dense()[order][:, order], rtol=1e-12)
    assert_relative(
        turned.block("a").dense(), turned.dense()[:8, :8], rtol=1e-12, what="transposed block"
    )


def test_cosines_of_means_side_by_side(generator: torch.Generator) -> None:
    model, (X, y) = mlp(), data(UNBALANCED)
    problem = cs.Problem(model, (X, y))
    found = mean_cosines(problem)
    structure = class_structure(problem.restrict(WEIGHTS))
    for c in range(3):
        own = [passed(model, x) for x in X[y == c]]
        h = torch.stack([torch.cat(inputs) for inputs, _, _ in own]).mean(0).split([3, 4, 2])
        p = torch.stack([q for _, _, q in own])
        d = torch.stack([torch.cat(errors, 1) for _, errors, _ in own])  # [n, C, 9]
        for k in range(3):
            mean = (p[:, k, None] * d[:, k]).sum(0) / p[:, k].sum()
            product = side_by_side(mean, list(h))
            cosine = F.cosine_similarity(structure.means[c, k], product, 0)
            assert float(found.cross[c, k]) == pytest.approx(float(cosine), rel=1e-10)
        others = [k for k in range(3) if k != c]
        w = p[:, others] / p[:, others].sum()
        mean = (w[..., None] * d[:, others]).sum((0, 1))
        product = side_by_side(mean, list(h))
        cosine = F.cosine_similarity(structure.class_means[c], product, 0)
        assert float(found.classes[c]) == pytest.approx(float(cosine), rel=1e-10)
    alone = layer_approximations(problem, layers="2", generator=generator)["2"]
    torch.testing.assert_close(mean_cosines(problem, layers="2").cross, alone.cross_cosines)


def test_refusals() -> None:
    images = convert(classes(2, 5, 5, sizes=(7, 5)), F64)
    conv = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)).double()
    problem = cs.Problem(conv, images)
    with pytest.raises(CurvescopeError, match="network_kfac: layer '0' must be applied once"):
        network_kfac(problem)
    assert network_kfac(problem, layers="3").shape == (81, 81)
    regression = cs.Problem(nn.Linear(2, 2), (torch.ones(3, 2), torch.ones(3, 2)), loss="mse")
    with pytest.raises(CurvescopeError, match="needs one class label for each sample"):
        network_cfac(regression)
    M = torch.eye(2)
    with pytest.raises(CurvescopeError, match=r"the layers need factors \[2, 2\] and \[3, 3\]"):
        KhatriRaoOperator([(1.0, M, M)], [LayerPlace("a", 2, 3)])
    with pytest.raises(CurvescopeError, match="weights must not be negative"):
        KhatriRaoOperator([(-1.0, M, M)], [LayerPlace("a", 2, 2)])
    with pytest.raises(CurvescopeError, match="layer 'b' is not among the layers; they are a"):
        KhatriRaoOperator([(1.0, M, M)], [LayerPlace("a", 2, 2)]).block("b")
