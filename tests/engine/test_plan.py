"""What a plan says is what happens; nothing depends on what was done before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.engine import closed_form, linearize
from curvescope.engine.engine import Engine
from curvescope.engine.plan import Plan
from curvescope.operators.base import LinearOperator
from curvescope.record import batch as tapes
from curvescope.record import memory
from tests.cases import BY_NAME, CASES
from tests.engine.live import live_bytes

BATCHES = 3


def problem(smooth: bool = False) -> cs.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(7, 6), nn.Tanh() if smooth else nn.ReLU(), nn.Linear(6, 5), nn.Flatten()
    )
    data = [(torch.randn(8, 7), torch.randint(5, (8,))) for _ in range(BATCHES)]
    return cs.Problem(model, data)


def block(A: Any, *, name: str = "0") -> Any:
    return A.block(name)


def alone(A: Any) -> Any:
    return A


OPERATORS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "H": (cs.Hessian, alone),
    "G": (cs.GaussNewton, alone),
    "a layer's H": (cs.Hessian, block),
    "a layer's G": (cs.GaussNewton, block),
}
KEEP = ["auto", True, False, "many"]


def operator(name: str, keep: Any, of: cs.Problem) -> Any:
    make, part = OPERATORS[name]
    if keep == "many":
        return part(make(of)).for_many()
    return part(make(of, keep=keep))


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Passes of the model, groups of columns through a batch, and recordings of a layer."""
    counts = {"passes": 0, "groups": 0, "captures": 0}

    def noted(what: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            counts[what] += 1
            return own(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        product, capture = tapes.TapeBatch.product, closed_form.capture
        patch.setattr(cs.Problem, "output", noted("passes", cs.Problem.output))
        patch.setattr(tapes.TapeBatch, "product", noted("groups", product))
        patch.setattr(closed_form, "capture", noted("captures", capture))
        yield counts


# What it says is what happens ---------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("smooth", [False, True])
def test_the_strategy_is_the_one_that_runs(name: str, keep: Any, smooth: bool) -> None:
    of = problem(smooth)
    A = operator(name, keep, of)
    plan = A.plan
    kept = keep in (True, "many")
    closed = kept and "layer" in name and not (smooth and "H" in name)
    by = "closed form" if closed else "tape" if kept else "tangents"
    assert plan.strategy == f"{'kept' if kept else 'streamed'} {by}"
    assert plan.keeps == kept
    v = torch.randn(A.shape[1])
    A @ v
    with counted() as counts:
        A @ v
    assert counts["passes"] == (0 if kept else BATCHES)
    assert counts["captures"] == 0
    # A lone column is pushed through while the batches are computed.
    assert counts["groups"] == (BATCHES if kept and not closed else 0)


@pytest.mark.parametrize("name", ["a layer's H", "a layer's G"])
def test_as_many_columns_as_directions_go_in_closed_form(name: str) -> None:
    of = problem()
    A = operator(name, "auto", of)
    assert "4 columns or more go in closed form" in A.plan.reason
    for columns, captures in ((3, 0), (4, BATCHES)):
        with counted() as counts:
            A @ torch.randn(A.shape[1], columns)
        assert counts["captures"] == captures


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("keep", KEEP)
def test_what_is_held_is_what_the_plan_says(name: str, keep: Any) -> None:
    of = problem()
    A = operator(name, keep, of)
    before = A.plan
    A @ torch.randn(A.shape[1], 2)
    after = A.plan
    engine = of.companion(Engine)
    own = {memory.address(p) for p in of.model.parameters()}
    everything = memory.held([engine._batches._sets, engine._closed._factors])
    held = memory.size(t for t in everything if memory.address(t) not in own)
    assert after.held == held
    assert after.needed is not None
    if before.keeps:
        assert 0 < held <= after.needed == before.needed
    else:
        assert held == before.held == 0
    A.release()
    assert A.plan.held == 0


def test_groups_of_columns_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    of = problem()
    monkeypatch.setattr(linearize, "COLUMNS_BYTES", 4000)
    for keep in (True, False):
        for columns in (None, 3):
            H = cs.Hessian(of, keep=keep, columns=columns)
            together = H.plan.columns
            assert together == columns or (columns is None and 1 < together < 16)
            H @ torch.randn(H.shape[1], 16)
            with counted() as counts:
                H @ torch.randn(H.shape[1], 16)
            assert counts["groups"] == BATCHES * -(-16 // together)


def test_costs_of_a_linear_layer() -> None:
    """Of a gradient's two matrix products a kept product has both, a streamed one more."""
    model = nn.Linear(5, 4, bias=False)
    of = cs.Problem(model, (torch.randn(8, 5), torch.randint(4, (8,))), params="weight")
    costs = {
        ("H", True): 1.0,  # W' x and u'ᵀ x
        ("H", False): 1.5,  # and W x; uᵀ x is not computed, since nobody reads it
        ("G", False): 1.5,  # and W x
    }
    for (name, keep), expected in costs.items():
        A = {"H": cs.Hessian, "G": cs.GaussNewton}[name](of, keep=keep)
        assert engine_cost(A, of) == expected


def engine_cost(A: LinearOperator, of: cs.Problem) -> float:
    return of.companion(Engine)._cost(A._matrix, closed=False, keeps=A._how.keep is True)


def test_a_model_without_a_tape_says_so() -> None:
    of = BY_NAME["checkpoint"].problem()
    H = cs.Hessian(of)
    assert H.plan.strategy == "streamed autograd graphs"
    assert "no tape: " in H.plan.reason
    assert H.plan.many.strategy == "kept autograd graphs"
    assert cs.Hessian(of, keep=True).plan.columns == 1


def test_sums_and_products_show_their_parts() -> None:
    of = problem()
    H = cs.Hessian(of)
    n = H.shape[0]
    A = 2 * cs.Diagonal(torch.ones(n)) + cs.Diagonal(torch.arange(n).float()) @ H
    lines = str(A.plan).split("\n")
    assert lines[0].startswith("part by part")
    assert [line.split(":")[0].strip() for line in lines[1:4]] == [
        "Diagonal",
        "Product",
        "Diagonal",
    ]
    assert "  Hessian: streamed tangents" in str(A.plan)
    assert "kept tape" in str(A.for_many().plan)
    assert A.keeping == "streamed"
    assert A.for_many().keeping == "kept"
    A.release()
    assert H.plan.held == 0


def test_memory_of_unknown_size_is_not_kept() -> None:
    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        torch.manual_seed(1)
        return iter([(torch.randn(4, 3), torch.randint(2, (4,))) for _ in range(2)])

    class Stream:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return endless()

    H = cs.Hessian(cs.Problem(nn.Linear(3, 2), Stream()))
    assert H.plan.needed is None
    assert "not known beforehand" in H.plan.many.reason
    assert H.for_many().keeping == "streamed"


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {1 << 30} kB\n")
    own = memory.free_on_host
    monkeypatch.setattr(memory, "free_on_host", lambda root: own(tmp_path))
    of = problem()
    needed = cs.Hessian(of).plan.needed
    for limit, expected in ((3 * needed, "kept"), (needed, "streamed")):
        (group / "memory.max").write_text(f"{limit + 100}\n")
        (group / "memory.current").write_text("100\n")
        H = cs.Hessian(of)
        assert H.plan.free == limit
        assert H.for_many().keeping == expected
        assert H.plan.many.keeps == (expected == "kept")
        H.release()


# Nothing depends on what was done before ----------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("keep", KEEP)
def test_the_tenth_product_is_the_first(name: str, keep: Any) -> None:
    A = operator(name, keep, problem())
    generator = torch.Generator().manual_seed(0)
    for columns in (1, 5):
        V = torch.randn(A.shape[1], columns, generator=generator)
        first = A @ V
        for _ in range(9):
            assert torch.equal(A @ V, first)
        assert torch.equal(operator(name, keep, problem()) @ V, first)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("keep", KEEP)
def test_what_others_do_does_not_matter(name: str, keep: Any) -> None:
    """Plans that are printed, estimates, other operators and their blocks that keep."""
    of = problem()
    A = operator(name, keep, of)
    generator = torch.Generator().manual_seed(0)
    V = torch.randn(A.shape[1], 5, generator=generator)
    first, form = A @ V, A.quadratic(V)

    def others() -> Iterator[object]:
        yield str(A.plan)
        for other in OPERATORS:
            for way in KEEP:
                B = operator(other, way, of)
                yield B @ torch.ones(B.shape[1], 2)
                yield B.quadratic(torch.ones(B.shape[1], 2))
        yield cs.eigenpairs(cs.Hessian(of), 2, generator=generator)
        yield cs.trace(cs.GaussNewton(of), generator=generator)
        yield A.release()

    for _ in others():
        assert torch.equal(A @ V, first)
        assert torch.equal(A.quadratic(V), form)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_a_gauss_newton_product_is_the_same_on_what_a_hessian_keeps(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    of, own = BY_NAME[name].problem(), BY_NAME[name].problem()
    v = torch.randn(of.params.size, generator=generator, dtype=torch.float64)
    cs.Hessian(of, keep=True) @ v
    G = cs.GaussNewton(of, keep=True)
    alone = cs.GaussNewton(own, keep=True)
    assert "kept" in G.plan.strategy
    for V in (v, torch.stack([v, -v, v.abs()], 1)):
        assert torch.equal(G @ V, alone @ V)
        assert torch.equal(G.quadratic(v[:, None]), alone.quadratic(v[:, None]))


# Releasing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
def test_release_frees_the_memory(name: str) -> None:
    of = problem()
    A = operator(name, True, of)
    v = torch.randn(A.shape[1])
    A @ v  # what is found out about the model, in few numbers, stays
    A.release()
    before = live_bytes()
    image = A @ v
    data = sum(batch.inputs.nbytes for batch in of.batches())
    assert live_bytes() - before >= A.plan.held - data > 0
    A.release()
    assert live_bytes() <= before + image.nbytes
    assert torch.equal(A @ v, image)


def test_the_plan_itself_holds_nothing() -> None:
    of = problem()
    H = cs.Hessian(of, keep=True)
    print(H.plan)
    before = live_bytes()
    plan: Plan = H.plan
    assert live_bytes() <= before
    assert plan.held == 0
