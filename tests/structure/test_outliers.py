"""Outliers: the rule, the counts and the shares, against dense matrices and planted structure."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from curvescope.data.embedded import load_embedded
from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import knockout
from curvescope.operators.simple import LowRank
from curvescope.problem import Problem
from curvescope.structure import outliers
from curvescope.structure.classes import ClassStructure, class_structure
from curvescope.structure.knockouts import class_dual
from curvescope.structure.logistic import CanonicalModel
from curvescope.structure.outliers import SHARES, attribute_outliers, outliers_of, widest_gap

F64 = torch.float64


def canonical(classes: int, features: int, signal: float, per_class: int) -> Problem:
    """The best classifier of the canonical model: TR sec. 8 says what its outliers are."""
    model = CanonicalModel(features, classes, signal)
    X, y = model.sample(per_class, generator=torch.Generator().manual_seed(1))
    layer = nn.Linear(features, classes, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(classes, features) * 0.6)
    return Problem(layer, (X, y))


def dense_spectrum(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0)


def test_edge_counts_and_shares_against_dense_matrices() -> None:
    problem = canonical(3, 12, 4.0, 15)
    found = attribute_outliers(problem)
    s = class_structure(problem)
    G, bulk = s.operator, knockout(s.operator, s.between_part, "project")
    values, vectors = torch.linalg.eigh(G.dense())
    values, vectors = values.flip(0), vectors.flip(1)
    edge = float(dense_spectrum(bulk.dense())[0])
    assert found.edge == pytest.approx(edge, rel=2e-6)
    assert found.outliers == int((values > found.edge).sum())
    k = found.outliers
    assert 0 < k <= 9
    torch.testing.assert_close(found.values[:k], values[:k], rtol=1e-10, atol=0)
    g, w = s.global_mean, s.class_weights.sum()
    v = vectors[:, :k]
    quadratic = lambda A: (v * (A @ v)).sum(0) / values[:k]  # noqa: E731
    first = w * (g @ v).square() / values[:k]
    expected = torch.stack(
        [
            first, quadratic(s.class_part) - first, quadratic(s.cross_part),
            quadratic(s.diagonal_part), quadratic(s.within_part),
        ],
        1,
    )  # fmt: skip
    torch.testing.assert_close(found.shares[:k], expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.shares.sum(1), torch.ones(len(found.values), dtype=F64))
    # the table: removal in the order of the groups, by dense matrices
    chain = [[_global(s)], [s.class_part], [s.class_part, s.cross_part], [s.between_part]]
    for how, column in (("subtract", "subtracted"), ("project", "projected")):
        left = [k]
        for parts in chain:
            A = G
            if how == "subtract":
                for part in parts:
                    A = A - part
            else:
                A = knockout(G, sum(p.dense() for p in parts), "project")
            left.append(int((dense_spectrum(A.dense()) > found.edge).sum()))
        gone = [a - b for a, b in pairwise(left)] + [left[-1]]
        assert [getattr(group, column) for group in found.groups] == gone
        assert sum(gone) == k


def _global(s: ClassStructure) -> LowRank:
    return LowRank(s.global_mean[:, None], s.class_weights.sum()[None])


def test_planted_classes_are_found() -> None:
    """Well separated classes: C outliers made by class means, none by the scatter."""
    found = attribute_outliers(canonical(4, 30, 9.0, 20))
    top = found.maker[:4]
    assert set(top) <= {"global", "class"}
    assert [g.name for g in found.groups] == list(SHARES)
    assert [g.expected for g in found.groups] == [1, 3, 12, 0, 0]
    assert found.groups[0].projected + found.groups[1].projected >= 4
    assert found.groups[-1].projected == 0
    assert sum(g.outliers for g in found.groups) == found.outliers


def test_the_search_finds_the_same(generator: torch.Generator) -> None:
    problem = canonical(3, 12, 4.0, 15)
    exact = attribute_outliers(problem)
    found = attribute_outliers(problem, limit=10, generator=generator)
    assert not found.exact
    assert found.edge == pytest.approx(exact.edge, rel=1e-6)
    assert found.groups == exact.groups
    k = exact.outliers
    torch.testing.assert_close(found.values[:k], exact.values[:k], rtol=1e-6, atol=0)
    torch.testing.assert_close(found.shares[:k], exact.shares[:k], rtol=0, atol=1e-3)
    with pytest.raises(
        CurvescopeError, match=r"has 135 rows, more than limit=10; the search needs"
    ):
        attribute_outliers(problem, limit=10)


def digits(steps: int = 200, samples: int = 40) -> Problem:
    """A float32 network after some steps of SGD: five classes, weights over many magnitudes."""
    X, y = load_embedded("mnist-6k", split="train")
    X, y = X[y < 5].flatten(1)[:200], y[y < 5][:200]
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 24), nn.Tanh(), nn.Linear(24, 5))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * p.shape[-1] ** -0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    return Problem(model, (X[:samples], y[:samples]))


def test_rare_pairs_of_classes_count_in_float32(generator: torch.Generator) -> None:
    """What a part spans does not depend on weights: none may fall below the rounding of float32."""
    problem = digits()
    exact = attribute_outliers(problem)
    found = attribute_outliers(problem, limit=1, generator=generator)
    assert not found.exact
    assert found.edge == pytest.approx(exact.edge, rel=1e-4)
    assert found.groups == exact.groups


def test_a_large_gram_matrix_is_searched(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = digits(steps=50)
    whole = attribute_outliers(problem, generator=generator)
    assert len(whole.values) == 200
    monkeypatch.setattr(outliers, "_DENSE", 100)
    found = attribute_outliers(problem, generator=generator)
    assert found.exact
    assert found.edge == pytest.approx(whole.edge, rel=1e-9)
    assert found.groups == whole.groups
    k = len(found.values)
    assert whole.outliers < k < 200
    torch.testing.assert_close(found.values, whole.values[:k], rtol=1e-8, atol=0)
    torch.testing.assert_close(
        found.shares[: whole.outliers], whole.shares[: whole.outliers], rtol=0, atol=1e-6
    )


def test_counts_of_knockouts_are_those_of_all_eigenvalues() -> None:
    """Inertia of one factorization against the spectra of all eight matrices."""
    dual = class_dual(digits(steps=100))
    found = outliers_of(dual)
    chain = [("global",), ("class",), ("class", "cross"), ("class", "cross", "diagonal")]
    for how, column in (("subtract", "subtracted"), ("project", "projected")):
        left = [int((dual.knocked_out(c, how).values > found.edge).sum()) for c in chain]
        gone = [a - b for a, b in pairwise([found.outliers, *left])] + [left[-1]]
        assert [getattr(group, column) for group in found.groups] == gone


def test_a_layer_and_two_classes() -> None:
    problem = canonical(2, 8, 5.0, 10)
    found = attribute_outliers(problem)
    assert found.classes == 2
    assert found.groups[2].expected == 2
    assert float(found.shares[:, 2].max()) < 1e-12  # two classes have no cross part
    layer = attribute_outliers(problem, layer="weight")
    torch.testing.assert_close(layer.values, found.values)


def test_no_outlier_is_made_of_rounding() -> None:
    """With fewer dimensions than means nothing is left to be a bulk: its edge is at rounding."""
    found = attribute_outliers(canonical(3, 3, 2.0, 8))  # 9 parameters, 9 means
    assert found.edge > 0
    assert found.outliers == 6  # the rank of G: three features times C − 1


def test_the_widest_gap() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 40.0, 50.0, 3000.0, -7.0, 0.0])
    assert widest_gap(values, most=5).count == 1
    assert widest_gap(values, most=5).ratio == 60.0
    gap = widest_gap(values[values < 1000], most=5)
    assert (gap.count, gap.edge) == (2, 3.0)
    assert gap.ratio == pytest.approx(40 / 3)
    # a gap further down is not looked at
    assert widest_gap(torch.tensor([4.0, 3.0, 2.0, 1e-9]), most=2).count == 2
    assert widest_gap(torch.tensor([5.0]), most=3).count == 1
    assert widest_gap(torch.tensor([-5.0, 0.0]), most=3).count == 0
