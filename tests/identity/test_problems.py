"""Identities of losses, problems and operators: what is in them, and what is not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import Projected, deflate, knockout
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import EmpiricalFisher, GaussNewton, MonteCarloFisher
from curvescope.operators.hessian import Hessian
from curvescope.operators.kronecker import KroneckerOperator
from curvescope.operators.simple import Dense, Diagonal, Identity, LowRank
from curvescope.problem import Problem
from curvescope.problem.losses import as_loss
from curvescope.spectra import eigenpairs, trace
from tests.identity.world import OTHER, SAME, World, first, samples

NOT_THE_PROBLEM = {
    "another matrix of its shape", "seven times the matrix", "another seed", "another setting",
    "a generator that went on",
}  # fmt: skip


@pytest.mark.parametrize("way", [way for way in OTHER if way not in NOT_THE_PROBLEM])
def test_another_problem_has_another_identity(way: str) -> None:
    assert OTHER[way](first()).problem().identity != first().problem().identity


@pytest.mark.parametrize("way", SAME)
def test_the_same_problem_has_one_identity(way: str) -> None:
    assert SAME[way](first()).problem().identity == first().problem().identity


@pytest.mark.parametrize("way", ["samples in another order", "samples cut into batches"])
def test_in_training_mode_the_batches_count(way: str) -> None:
    def problem(world: World) -> Problem:
        batches = list(world.problem().data)
        pairs = [(batch.inputs, batch.target) for batch in batches]
        return Problem(world.model, pairs, loss=world.loss, mode="train")

    assert problem(SAME[way](first())).identity != problem(first()).identity
    assert problem(first()).identity == problem(first()).identity


def test_a_norm_without_statistics_sees_batches_in_evaluation_too() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)).double()
    X, y = samples()
    whole = Problem(model, (X, y))
    cut = Problem(model, list(zip(X.split(4), y.split(4), strict=True)))
    assert whole.identity != cut.identity
    assert not torch.allclose(whole.gradient(), cut.gradient())


def test_samples_that_attend_to_each_other_see_batches_too() -> None:
    class OverTheBatch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            return (h @ h.mT).softmax(1) @ h

    model, (X, y) = OverTheBatch().double(), samples()
    whole = Problem(model, (X, y))
    cut = Problem(model, list(zip(X.split(4), y.split(4), strict=True)))
    assert whole.identity != cut.identity
    assert not torch.allclose(whole.gradient(), cut.gradient())


def test_the_variables_count() -> None:
    world = first()
    parts = [Problem(world.model, world.data, params=p) for p in (None, "0", "3", "3.bias")]
    assert len({part.identity for part in parts}) == 4
    whole = parts[0]
    before = whole.identity
    assert whole.restrict("0").identity == parts[1].identity
    assert whole.identity == before


def test_frozen_weights_count_and_tied_ones_are_not_equal_ones() -> None:
    frozen, other = first(), first()
    other.model[0].weight.data[0, 0] += 1
    one, two = (Problem(w.model, w.data, params="3") for w in (frozen, other))
    assert one.identity != two.identity


def test_inputs_by_name_and_by_position_differ() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3).double()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            out: Tensor = self.layer(a + 2 * b)
            return out

    model, (X, y) = Pair(), samples()
    named = [{"a": X, "b": 2 * X, "labels": y}, {"b": X, "a": 2 * X, "labels": y}]
    assert len({Problem(model, data).identity for data in named}) == 2


# Losses -------------------------------------------------------------------------------------------


def test_losses_are_known_by_kind_settings_and_code() -> None:
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, z: Tensor, y: Tensor) -> Tensor:
            return self.factor * F.cross_entropy(z, y)

    def make() -> list[object]:
        return [
            "cross_entropy", "mse", "binary_logistic",
            nn.CrossEntropyLoss(ignore_index=3), nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0),
            lambda z, y: F.cross_entropy(z, y), lambda z, y: 2 * F.cross_entropy(z, y),
            functools.partial(F.huber_loss, delta=3.0), functools.partial(F.huber_loss, delta=4.0),
            Scaled(1.0), Scaled(2.0),
        ]  # fmt: skip

    identities = [as_loss(loss).identity for loss in make()]  # type: ignore[arg-type]
    assert len(set(identities)) == len(identities)
    assert [as_loss(loss).identity for loss in make()] == identities  # type: ignore[arg-type]


def test_a_loss_that_cannot_be_known_says_so_and_can_say_what_it_is() -> None:
    def loss(z: Tensor, y: Tensor, table: object = iter([1])) -> Tensor:
        return F.cross_entropy(z, y)

    known = as_loss(loss)
    with pytest.raises(CurvescopeError, match="has no identity; give it an attribute"):
        _ = known.identity


# Operators ----------------------------------------------------------------------------------------


def dense(seed: int, n: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return A + A.T


def basis(seed: int) -> Tensor:
    Q: Tensor = torch.linalg.qr(dense(seed)[:, :2])[0]
    return Q


#: two operators of one shape, dtype and class
PAIRS: dict[str, Callable[[int], LinearOperator]] = {
    "dense": lambda i: Dense(dense(i)),
    "diagonal": lambda i: Diagonal(dense(i)[0]),
    "low rank": lambda i: LowRank(basis(i)),
    "scales of a low rank": lambda i: LowRank(basis(0), torch.tensor([1.0, i]).double()),
    "kronecker": lambda i: KroneckerOperator(dense(0, 2), dense(i, 3)),
    "kronecker inverse": lambda i: KroneckerOperator(
        dense(0, 2) @ dense(0, 2), dense(i, 3) @ dense(i, 3), psd=True
    ).inverse(1.0),
    "multiple": lambda i: (2.0 + i) * Dense(dense(0)),
    "sum": lambda i: Dense(dense(0)) + Diagonal(dense(i)[0]),
    "product": lambda i: Dense(dense(0)) @ Dense(dense(i)),
    "factors exchanged": lambda i: Dense(dense(i)) @ Dense(dense(1 - i)),
    "transpose": lambda i: (Dense(dense(0)) @ Dense(dense(i))).T,
    "projected": lambda i: Projected(Dense(dense(0)), basis(i)),
    "projected on one side": lambda i: Projected(Dense(dense(0)), basis(0), basis(i)),
    "deflated": lambda i: deflate(
        Dense(dense(0)), eigenpairs(Dense(dense(i)), 1, generator=torch.Generator().manual_seed(0))
    ),
    "knocked out": lambda i: knockout(Dense(dense(0)), LowRank(basis(i))),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_operators_are_known_by_their_numbers(kind: str) -> None:
    make = PAIRS[kind]
    assert make(0).identity == make(0).identity != make(1).identity
    assert make(0).identity_products == 0


def test_kinds_of_operators_and_dtypes_differ() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    kinds = [
        Dense(eye), Diagonal(torch.ones(3).double()), LowRank(eye), Dense(eye.float()),
        Identity(3, dtype=torch.float64, device="cpu"),
    ]  # fmt: skip
    assert len({kind.identity for kind in kinds}) == len(kinds)


def test_curvature_matrices_of_one_problem_differ() -> None:
    problem = Problem(first().model, samples())

    def fisher(seed: int, count: int = 1) -> LinearOperator:
        generator = torch.Generator().manual_seed(seed)
        return MonteCarloFisher(problem, samples=count, generator=generator)

    H, G = Hessian(problem), GaussNewton(problem)
    all_of_them = [
        H, G, EmpiricalFisher(problem), H - G, 2 * H, fisher(0), fisher(1), fisher(0, 2),
        H.block("0"), H.block("3"), H.block("3.bias"), G.block("0"),
    ]  # fmt: skip
    assert len({A.identity for A in all_of_them}) == len(all_of_them)
    assert fisher(0).identity == fisher(0).identity
    assert Hessian(problem, keep=True).identity == Hessian(problem, keep=False).identity


def test_draws_belong_to_the_place_of_a_sample() -> None:
    worlds = [first(), replace(first(), batch_size=5)]
    problems = [Problem(w.model, w.data, batch_size=w.batch_size) for w in worlds]
    whole, cut = (MonteCarloFisher(p, generator=torch.Generator().manual_seed(0)) for p in problems)
    assert problems[0].identity == problems[1].identity
    assert whole.identity != cut.identity


class Own(LinearOperator):
    """A user's operator, of which nothing is known."""

    def __init__(self, matrix: Tensor) -> None:
        n = len(matrix)
        super().__init__((n, n), dtype=matrix.dtype, device="cpu", symmetric=True)
        self.matrix, self.columns = matrix, 0

    def _matmat(self, X: Tensor) -> Tensor:
        self.columns += X.shape[1]
        return self.matrix @ X


@pytest.mark.parametrize("known", [Diagonal, Hessian])
def test_a_subclass_that_multiplies_otherwise_is_known_by_a_product(known: Any) -> None:
    class Doubled(known):  # type: ignore[misc]
        def _matmat(self, X: Tensor) -> Tensor:
            return 2 * super()._matmat(X)

    class Named(Doubled):
        def _decided_by(self) -> tuple[object, ...]:
            return "doubled", super()._decided_by()

    given = Problem(first().model, samples()) if known is Hessian else dense(0)[0]
    identities = {kind(given).identity for kind in (known, Doubled, Named)}
    assert len(identities) == 3
    assert [kind(given).identity_products for kind in (known, Doubled, Named)] == [0, 1, 0]
    A = known(given)
    A._matmat = lambda X: 3 * X
    assert A.identity not in identities


def test_a_users_operator_is_known_by_one_product_which_is_counted(tmp_path: object) -> None:
    generator = torch.Generator
    A, path = Own(dense(0)), f"{tmp_path}/state"
    assert A.identity == Own(dense(0)).identity != Own(dense(1)).identity
    assert A.columns == A.identity_products == 1
    assert (A + Own(dense(1))).identity_products == 2

    without = Own(dense(0))
    assert trace(without, probes=4, generator=generator().manual_seed(0)).products == 4
    assert without.columns == 4, "no checkpoint, no product"
    counted = Own(dense(0))
    estimate = trace(counted, probes=4, generator=generator().manual_seed(0), checkpoint=path)
    assert estimate.products == counted.columns == 5
    trace(Own(dense(0)), probes=4, generator=generator().manual_seed(0), checkpoint=path, every=1)
    with pytest.raises(CurvescopeError, match="the matrix is another one"):
        trace(Own(dense(1)), probes=4, generator=generator().manual_seed(0), checkpoint=path)
