"""The studies of a language model: its run, and their numbers against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from curvescope.data import Dataset
from curvescope.experiments.training import usual_recipe
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.factors import kronecker_factors
from curvescope.studies import catalog
from curvescope.studies.language import blocks, classes, layers, spectra, subjects
from curvescope.studies.run import Run
from curvescope.studies.study import Study
from curvescope.training.moments import Moments

TOKENS = 5


class Small(nn.Module):
    """The layers of a language model that the studies look at, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(TOKENS, 4), nn.LayerNorm(4)
        self.q1, self.head = nn.Linear(4, 4), nn.Linear(4, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        before = h.cumsum(-2) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.head(self.norm(h + torch.tanh(self.q1(before))))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Small().double().eval()


@pytest.fixture(scope="module")
def text() -> Dataset:
    X = torch.randint(TOKENS, (6, 3), generator=torch.Generator().manual_seed(1))
    return Dataset(X, X.roll(-1, 1), TOKENS, "toy", vocabulary="abcde")


def language(name: str) -> Study:
    study = catalog.study_named(f"language/{name}")
    assert study is not None
    return study


def test_the_network_is_that_of_curvescope_train(tmp_path) -> None:
    of = Run(language("spectra"), "paper", tmp_path).describe("gpt")
    assert of.recipe == usual_recipe(of.network, seed=0)
    assert (of.network, of.images.data, of.images.samples) == ("GPT-4x128", "python-topics", None)


def test_every_parameter_is_of_a_kind_and_in_one_block(model: nn.Module, text: Dataset) -> None:
    space = subjects.language_problem(model, text).params
    assert float(subjects.sizes(space).sum()) == pytest.approx(1)
    for partition in blocks.PARTITIONS:
        names = [name for part in blocks.parts_of(space, partition) for name in part]
        assert sorted(names) == sorted(space.names)
    assert [len(part) for part in blocks.parts_of(space, "block")] == [1, 4, 2]


def test_products_with_diagonal_blocks(model: nn.Module, text: Dataset) -> None:
    problem = subjects.language_problem(model, text)
    generator = torch.Generator().manual_seed(2)
    X = torch.randn(problem.params.size, 2, generator=generator, dtype=torch.float64)
    for matrix, operator in (("H", Hessian(problem)), ("G", GaussNewton(problem))):
        dense = operator.dense()
        found = blocks._products(matrix, model, text, X)
        for partition in blocks.PARTITIONS:
            D = torch.zeros_like(dense)
            for names in blocks.parts_of(problem.params, partition):
                rows = problem.params.indices(names)
                D[rows[:, None], rows] = dense[rows[:, None], rows]
            cosines, errors = blocks._quality(found, partition)
            for i in range(2):
                whole, blocked = dense @ X[:, i], D @ X[:, i]
                expected = float(whole @ blocked / whole.norm() / blocked.norm())
                assert float(cosines[i]) == pytest.approx(expected, rel=1e-9)
                relative = float((whole - blocked).norm() / whole.norm())
                assert float(errors[i]) == pytest.approx(relative, rel=1e-6)


def test_a_layer_beside_its_products(model: nn.Module, text: Dataset) -> None:
    generator = torch.Generator().manual_seed(3)
    names = ("q1", "head", "embedding")
    state = generator.get_state()
    tensors = layers._factors(model, text, names, 400, generator)
    factors = layers._read(tensors, model, names)
    problem = subjects.language_problem(model, text)
    generator.set_state(state)
    again = kronecker_factors(problem, layers=names, draws=400, generator=generator)
    for name in names:
        found = layers._compare(name, factors[name], model, text, 3, 1e-8, 2000, generator)
        block = f"{name}.weight"
        G, H = (kind(problem).block(block).dense() for kind in (GaussNewton, Hessian))
        assert torch.allclose(found["G values"], torch.linalg.eigvalsh(G).flip(0)[:3], rtol=1e-6)
        assert torch.allclose(found["H values"], torch.linalg.eigvalsh(H).flip(0)[:3], rtol=1e-6)
        assert float(found["norm of G"]) == pytest.approx(float(G.norm()), rel=1e-2)
        expand = again[name].operator().dense()  # an embedding's weight is stored the other way
        assert torch.equal(factors[name]["expand"].operator().dense(), expand)
        for sharing in layers.SHARING:
            K = factors[name][sharing].operator().dense()
            expected = float((G * K).sum() / G.norm() / K.norm())
            assert layers.cosine(found, sharing) == pytest.approx(expected, abs=1e-2)


def test_parts_of_g_and_the_largest_without_them(model: nn.Module, text: Dataset) -> None:
    generator = torch.Generator().manual_seed(4)
    problem = subjects.language_problem(model, text)
    G = GaussNewton(problem)
    pairs = eigenpairs(G, 4, tol=1e-9, generator=generator)
    found = classes._classes(model, text, 2, pairs, 1e-9, generator)
    assert float(found["off"]) < 1e-12
    assert int(found["counts"].sum()) == text.y.numel()
    parts = [found[f"{part} share"] for part in ("class", "cross", "diagonal")]
    assert torch.allclose(sum(parts), found["between share"])
    for part in ("class", "between"):  # interlacing: what is subtracted is positive
        assert bool((found[f"left without {part}"] <= pairs.values * (1 + 1e-9)).all())


def test_the_metric_of_adam(model: nn.Module, text: Dataset) -> None:
    """λ₁(P^-1/2 H P^-1/2) is that of P⁻¹H."""
    squares = {name: torch.rand_like(p) for name, p in model.named_parameters()}
    means = {name: torch.rand_like(p) for name, p in model.named_parameters()}
    point = subjects.Point("end", 1, model, 1e-3, Moments(1, 10, means, squares))
    problem = subjects.language_problem(model, text)
    P = point.preconditioner(problem.params)
    assert P is not None
    generator = torch.Generator().manual_seed(5)
    found = spectra._measure("P", model, text, P.rsqrt(), None, 2, 1e-9, 6, 2, generator)
    values = torch.linalg.eigvals(Hessian(problem).dense() / P[:, None]).real
    assert float(found["pairs values"][0]) == pytest.approx(float(values.max()), rel=1e-6)
    step = point.last_step(problem.params)
    assert step is not None
    expected = problem.params.flatten(means) / P
    assert torch.allclose(step, expected / expected.norm())


def test_signs_give_traces_by_kind(model: nn.Module, text: Dataset) -> None:
    problem = subjects.language_problem(model, text)
    found = spectra._signs(model, text, 3000, torch.Generator().manual_seed(6))
    diagonal = Hessian(problem).dense().diagonal()[:, None]
    kinds = subjects.by_kind(diagonal, problem.params)[:, 0]
    samples = found["H kinds"]
    error = samples.std(1) / samples.shape[1] ** 0.5
    assert bool(((samples.mean(1) - kinds).abs() <= 4 * error + 1e-12).all())
    assert float(found["E off"]) < 1e-12
