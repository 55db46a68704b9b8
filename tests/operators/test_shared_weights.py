"""Blocks of layers whose weights are shared over positions, against dense references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.engine.engine import Engine
from curvescope.engine.lookups import Lookups
from curvescope.layers import kind_of
from curvescope.operators.gram import GramForm
from curvescope.record.extended import class_directions
from curvescope.record.samples import terms_apart
from tests.conformance import assert_relative, check_operator, check_products
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy
from tests.tolerances import EXACT
from tests.transformers_of_ours import LAYERS, channels_last_vision, made

RTOL = EXACT[torch.float64]


def problem_and_reference(model: nn.Module, data: Any) -> tuple[cs.Problem, Reference]:
    return cs.Problem(model, data), Reference(model, data, CrossEntropy())


def recorded(problem: cs.Problem) -> set[str]:
    """The layers that are kept in closed form."""
    return {layer for layer, _ in problem.companion(Engine)._closed._factors}


def parameters(problem: cs.Problem, name: str) -> list[str]:
    return [n for n in problem.params.names if n == name or n.startswith(f"{name}.")]


@pytest.fixture(scope="module")
def pooled() -> tuple[cs.Problem, Reference]:
    return problem_and_reference(*made(pooled=True))


@pytest.fixture(scope="module")
def language() -> tuple[cs.Problem, Reference]:
    return problem_and_reference(*made(pooled=False))


@pytest.mark.parametrize("layer", LAYERS)
def test_every_kind_of_layer_has_an_exact_closed_form(
    pooled: tuple[cs.Problem, Reference], layer: str
) -> None:
    """A label for each sample: all positions meet in one output."""
    problem, reference = pooled
    for name in (layer, *parameters(problem, layer)):
        indices = reference.indices(parameters(problem, name))
        dense = reference.gauss_newton()[indices][:, indices]
        check_products(cs.GaussNewton(problem, keep=True).block(name), dense, rtol=RTOL)
        streamed = cs.GaussNewton(problem, keep=False).block(name)
        assert_relative(streamed.dense(), dense, rtol=RTOL, what="streamed")
    assert layer in recorded(problem)


def test_an_operator_of_a_table_is_as_good_as_any(pooled: tuple[cs.Problem, Reference]) -> None:
    problem, reference = pooled
    indices = reference.indices(["tokens.weight"])
    dense = reference.gauss_newton()[indices][:, indices]
    check_operator(cs.GaussNewton(problem, keep=True).block("tokens"), dense, rtol=RTOL)
    fisher = cs.EmpiricalFisher(problem, keep=True).block("tokens")
    empirical = reference.empirical_fisher()[indices][:, indices]
    check_products(fisher, empirical, rtol=RTOL)
    (pieces, _) = next(
        entry
        for (layer, _), entry in problem.companion(Engine)._closed._factors.items()
        if layer == "tokens"
    )
    assert all(isinstance(piece, Lookups) for piece in pieces)
    G = cs.GaussNewton(problem, keep=True).block("tokens")
    top = cs.eigenpairs(G, 3, tol=1e-10, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(top.values, torch.linalg.eigvalsh(dense)[-3:].flip(0))


@pytest.mark.parametrize("layer", LAYERS)
def test_labels_at_every_position(language: tuple[cs.Problem, Reference], layer: str) -> None:
    """Exact for every layer; in closed form where a position is a row of its own."""
    problem, reference = language
    indices = reference.indices(parameters(problem, layer))
    dense = reference.gauss_newton()[indices][:, indices]
    check_products(cs.GaussNewton(problem, keep=True).block(layer), dense, rtol=RTOL)
    H = cs.Hessian(problem, keep=True).block(layer)
    check_products(H, reference.hessian()[indices][:, indices], rtol=RTOL)


def test_where_a_position_is_a_row(language: tuple[cs.Problem, Reference]) -> None:
    """Behind the attention, and behind the group norm, whose statistics are over positions."""
    problem, _ = language
    batch = next(iter(problem.data))
    assert terms_apart(problem, batch, LAYERS) == {"groups", "down", "final", "head"}
    for layer in ("groups", "down", "final", "head"):
        cs.GaussNewton(problem, keep=True).block(layer) @ torch.ones(
            cs.GaussNewton(problem).block(layer).shape[0], dtype=torch.float64
        )
        assert layer in recorded(problem)


@pytest.mark.parametrize("pooled_model", [True, False])
def test_the_gram_form_has_no_row_by_autograd(
    pooled_model: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, reference = problem_and_reference(*made(pooled=pooled_model))
    form = GramForm(problem, class_directions)
    monkeypatch.setattr(type(form.source), "_written", None)
    values = torch.linalg.eigvalsh(form.matrix())
    dense = torch.linalg.eigvalsh(reference.gauss_newton())
    k = min(len(values), len(dense), 20)
    torch.testing.assert_close(values[-k:], dense[-k:], rtol=1e-10, atol=1e-12 * float(dense[-1]))
    trace = float(reference.gauss_newton().diagonal().sum())
    assert float(form.diagonal().sum()) == pytest.approx(trace, rel=1e-12)
    for layer in ("tokens", "ln", "attend"):
        indices = reference.indices(parameters(problem, layer))
        block = reference.gauss_newton()[indices][:, indices]
        K = form.restrict(layer).matrix()
        assert float(K.square().sum()) == pytest.approx(float(block.square().sum()), rel=1e-10)


def test_tied_embedding_and_head() -> None:
    problem, reference = problem_and_reference(*made(pooled=False, tied=True))
    indices = reference.indices(["tokens.weight"])
    for make, whole in (
        (cs.GaussNewton, reference.gauss_newton()), (cs.Hessian, reference.hessian())
    ):  # fmt: skip
        for name in ("tokens", "head", "head.weight"):
            dense = whole[indices][:, indices]
            check_products(make(problem, keep=True).block(name), dense, rtol=RTOL)


def test_channels_second_and_slopes_of_a_prelu() -> None:
    model, data = channels_last_vision()
    problem, reference = problem_and_reference(model, data)
    for layer in ("patches", "norm", "prelu", "mix"):
        assert kind_of(model.get_submodule(layer)) is not None
        indices = reference.indices(parameters(problem, layer))
        dense = reference.gauss_newton()[indices][:, indices]
        check_products(cs.GaussNewton(problem, keep=True).block(layer), dense, rtol=RTOL)
        hessian = reference.hessian()[indices][:, indices]
        check_products(cs.Hessian(problem, keep=True).block(layer), hessian, rtol=RTOL)
    assert recorded(problem) == {"patches", "norm", "prelu", "mix"}


@pytest.mark.parametrize("layer", ["tokens", "attend", "groups", "final", "head"])
def test_fisher_matrices_at_positions(language: tuple[cs.Problem, Reference], layer: str) -> None:
    """One direction for each position; that of another position must not come along."""
    problem, reference = language
    indices = reference.indices(parameters(problem, layer))
    dense = reference.empirical_fisher()[indices][:, indices]
    check_products(cs.EmpiricalFisher(problem, keep=True).block(layer), dense, rtol=RTOL)
    g = torch.Generator().manual_seed(3)
    F = cs.MonteCarloFisher(problem, samples=2, generator=g, keep=True)
    V = torch.randn(len(indices), 3, dtype=torch.float64)
    block = F.block(layer)
    whole = torch.zeros(F.shape[0], 3, dtype=torch.float64)
    places = [problem.params.slice(n) for n in parameters(problem, layer)]
    flat = torch.cat([torch.arange(s.start, s.stop) for s in places])
    whole[flat] = V
    assert_relative(block @ V, (F @ whole)[flat], rtol=RTOL, what=layer)


def test_lengths_that_differ_and_positions_that_do_not_count() -> None:
    model, _ = made(pooled=False)
    g = torch.Generator().manual_seed(7)
    data = []
    for length in (4, 2, 3, 1):
        x = torch.randint(1, 6, (3, length), generator=g)
        y = torch.randint(3, (3, length), generator=g)
        y[1, length // 2 :] = -100
        data.append((x, y))
    problem = cs.Problem(model, data, loss=cs.losses.CrossEntropy(axis=-1))
    reference = Reference(model, data, CrossEntropy(), per_batch=True)
    G = reference.gauss_newton()
    for layer in ("tokens", "places", "ln", "final", "head"):
        indices = reference.indices(parameters(problem, layer))
        block = cs.GaussNewton(problem, keep=True).block(layer)
        check_products(block, G[indices][:, indices], rtol=RTOL)
    form = GramForm(problem, class_directions)
    assert float(form.matrix().trace()) == pytest.approx(float(G.trace()), rel=1e-12)


def test_single_precision() -> None:
    model, data = made(pooled=True)
    reference = Reference(model, data, CrossEntropy())
    problem = cs.Problem(model.float(), data)
    for layer in LAYERS:
        indices = reference.indices(parameters(problem, layer))
        dense = reference.gauss_newton()[indices][:, indices]
        block = cs.GaussNewton(problem, keep=True).block(layer)
        check_products(block, dense, rtol=EXACT[torch.float32])


class Gated(nn.Module):
    """A norm that multiplies by a second input, where it is given one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        y = self.weight * torch.tanh(x)
        return y if gate is None else y * gate


class WithGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = Gated(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x, 2 + x))


def test_a_module_that_does_more_than_was_tried_out_goes_the_general_way() -> None:
    torch.manual_seed(0)
    model = WithGate().double()
    data = [(torch.randn(5, 4).double(), torch.arange(5) % 3)]
    problem, reference = problem_and_reference(model, data)
    indices = reference.indices(["norm.weight"])
    G = cs.GaussNewton(problem, keep=True).block("norm")
    check_products(G, reference.gauss_newton()[indices][:, indices], rtol=RTOL)
    assert "closed form" not in G.plan.strategy
    assert recorded(problem) == set()
