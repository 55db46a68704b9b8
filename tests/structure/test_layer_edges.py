"""Small and unusual layers: the right answer or one clear sentence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import curvescope as cs
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.correspondences import correspondence, singular_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.full_hessian import full_hessian_approximation
from curvescope.structure.layer_pairs import layer_eigenpairs
from curvescope.structure.output_hessian import output_hessian_theory
from curvescope.structure.overlaps import compare_eigenpairs, pairwise_overlap
from curvescope.structure.prediction import overlap_prediction


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def narrow() -> cs.Problem:
    """One input, one hidden unit, two classes, one sample."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
        model[2].weight[1] = -1.0
    return cs.Problem(model, (torch.full((1, 1), 3.0).double(), torch.tensor([1])))


@pytest.mark.parametrize(("layer", "outputs"), [("0", 1), ("2", 2)])
def test_every_analysis_of_the_smallest_layers(layer: str, outputs: int) -> None:
    problem = narrow()
    factors = kronecker_factors(problem)[layer]
    dense = torch.linalg.eigvalsh(cs.Hessian(problem).block(f"{layer}.weight").dense()).flip(0)
    block = cs.Hessian(problem).block(f"{layer}.weight")
    pairs = layer_eigenpairs(block, outputs, generator=generator())
    torch.testing.assert_close(pairs.values, dense, atol=1e-12, rtol=1e-9)
    compared = compare_eigenpairs(pairs, factors.operator().top(outputs))
    torch.testing.assert_close(compared.approximate, dense, atol=1e-12, rtol=1e-9)  # one sample
    assert float(compared.overlap[0]) == pytest.approx(1)
    assert singular_structure(pairs, outputs).ratio.tolist() == pytest.approx([1.0] * outputs)
    basis = torch.ones(1, 1).double()
    columns = correspondence(pairs, basis, side="input").matrix
    assert columns.sum(0).tolist() == pytest.approx([1.0] * outputs)
    structure = autocorrelation_structure(factors)
    assert (structure.alignment, structure.spectral_ratio) == (1.0, float("inf"))
    assert pairwise_overlap([pairs, pairs]).mean[-1] == pytest.approx(1)
    assert overlap_prediction(factors, factors, output_layer=layer == "2").alignment == 1.0


def test_theory_and_full_hessian_with_two_classes_and_one_sample() -> None:
    problem = narrow()
    theory = output_hessian_theory(problem, kronecker_factors(problem))
    assert {name: (t.dimension, round(t.overlap, 9)) for name, t in theory.items()} == {
        "0": (1, 1.0),
        "2": (1, 1.0),
    }
    exact = cs.GaussNewton(problem).dense()  # one sample: M ⊗ x̃ x̃ᵀ of all layers together
    values, vectors = torch.linalg.eigh(exact)
    found = full_hessian_approximation(problem, 1)
    assert found.values[0].item() > 0
    assert float((found.vectors[:, 0] @ vectors[:, -1]).abs()) > 0.9
    assert 0.5 < float(found.values[0] / values[-1]) < 2


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(torch.relu(self.inner(x)))
        z: Tensor = self.head(torch.relu(hidden))
        return z


def test_a_layer_that_is_used_twice() -> None:
    torch.manual_seed(0)
    model = Shared().double()
    X, y = torch.randn(6, 3).double(), torch.arange(6) % 2
    problem = cs.Problem(model, (X, y))
    with pytest.raises(cs.CurvescopeError, match="'inner' is used more than once"):
        kronecker_factors(problem)
    assert list(kronecker_factors(problem, layers="head")) == ["head"]

    def loss(weight: Tensor) -> Tensor:
        z = torch.func.functional_call(model, {"inner.weight": weight.view(3, 3)}, (X,))
        return nn.functional.cross_entropy(z, y)

    weight = model.inner.weight.detach().flatten()
    expected = torch.autograd.functional.hessian(loss, weight)
    torch.testing.assert_close(
        cs.Hessian(problem).block("inner.weight").dense(), expected, atol=1e-12, rtol=1e-9
    )


def test_a_layer_of_another_kind() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    problem = cs.Problem(model, (torch.randn(5, 3).double(), torch.arange(5) % 2))
    with pytest.raises(cs.CurvescopeError, match=r"'1' must be Conv1d.*Linear.*, got Tanh"):
        kronecker_factors(problem, layers="1")
    assert list(kronecker_factors(problem)) == ["0", "2"]


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.reentrant: bool | None = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            hidden = self.body(x)
        else:
            hidden = checkpoint(self.body, x, use_reentrant=self.reentrant)
        z: Tensor = self.head(hidden.flatten(1))
        return z


def test_inside_a_checkpoint() -> None:
    torch.manual_seed(0)
    model = Checkpointed(reentrant=False).double()
    data = (torch.randn(5, 1, 6, 6).double(), torch.arange(5) % 3)
    found = kronecker_factors(cs.Problem(model, data))
    block = cs.Hessian(cs.Problem(model, data)).block("body.0.weight").dense()
    model.reentrant = None
    expected = kronecker_factors(cs.Problem(model, data))
    for name, factors in expected.items():
        torch.testing.assert_close(found[name].output_hessian, factors.output_hessian)
        torch.testing.assert_close(found[name].autocorrelation, factors.autocorrelation)
    assert list(found) == ["body.0", "body.2", "head"]
    dense = cs.Hessian(cs.Problem(model, data)).block("body.0.weight").dense()
    torch.testing.assert_close(block, dense)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # by torch
def test_inside_a_reentrant_checkpoint() -> None:
    model = Checkpointed(reentrant=True).double()
    problem = cs.Problem(model, (torch.randn(5, 1, 6, 6).double(), torch.arange(5) % 3))
    with pytest.raises(cs.CurvescopeError, match="checkpointing with use_reentrant=False"):
        kronecker_factors(problem, layers="body.0")


@pytest.mark.parametrize("side", [1, 3])
def test_errors_that_agree_at_all_positions_are_lost_in_a_product(side: int) -> None:
    """``E[Ñᵀ Ñ / T] ⊗ E[X Xᵀ]`` has 1/T of the true eigenvalue when positions do not differ.

    The true block is ``E[n nᵀ]`` with ``n = Σ_t e_t ⊗ x_t``, which is ``T e ⊗ x`` here: of size T².
    The product takes the positions as independent: of size T. DH A.2 shares this property.
    """
    model = nn.Sequential(
        nn.Conv2d(2, 3, 1, bias=False), nn.AvgPool2d(side), nn.Flatten(), nn.Linear(3, 2)
    ).double()
    X = torch.tensor([0.5, 2.0]).double().view(1, 2, 1, 1).expand(1, 2, side, side)
    problem = cs.Problem(model, (X.contiguous(), torch.tensor([0])))
    true = torch.linalg.eigvalsh(cs.Hessian(problem).block("0.weight").dense())[-1]
    product = kronecker_factors(problem, layers="0")["0"].operator().eigenvalues()[0]
    assert float(product / true) == pytest.approx(1 / side**2)
