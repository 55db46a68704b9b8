"""How often the model runs, what is held in memory, and what the options do."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.engine.engine import Engine
from curvescope.record import memory
from curvescope.record.batch import LinearizedBatch
from tests.conformance import assert_relative
from tests.engine.live import live_bytes


class Counting(nn.Module):
    """A small network that counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc2(torch.tanh(self.fc1(x)))


def counting_problem(batches: int = 3) -> tuple[Counting, cs.Problem]:
    torch.manual_seed(0)
    model = Counting().double()
    data = [(torch.randn(5, 4).double(), torch.randint(3, (5,))) for _ in range(batches)]
    return model, cs.Problem(model, data)


def test_difference_of_hessian_and_gauss_newton_is_one_sweep() -> None:
    model, problem = counting_problem()
    E = cs.Hessian(problem, keep=False) - cs.GaussNewton(problem, keep=False)
    for trials in (1, 0):  # how much a product takes is measured once, on a few samples
        model.calls = 0
        E @ torch.randn(E.shape[0]).double()
        assert model.calls == 3 + trials


def test_a_block_of_columns_is_one_pass() -> None:
    model, problem = counting_problem()
    H = cs.Hessian(problem, keep=False)
    for trials in (1, 0):
        model.calls = 0
        H @ torch.randn(H.shape[0], 16).double()
        assert model.calls == 3 + trials


def batches(problem: cs.Problem) -> tuple[LinearizedBatch, ...]:
    sets = problem.companion(Engine)._batches._sets.values()
    return tuple(batch for own in sets for batch in own)


def test_lone_products_stream_and_many_keep() -> None:
    model, problem = counting_problem()
    H, G = cs.Hessian(problem), cs.GaussNewton(problem)
    v = torch.randn(H.shape[0]).double()
    for trials in (1, 0, 0):
        model.calls = 0
        H @ v
        assert model.calls == 3 + trials
        assert not batches(problem)
    model.calls = 0
    many = H.for_many()
    assert model.calls == len(batches(problem)) == 3  # each batch once, the first one too
    many @ v
    G.for_many() @ v  # shares the Hessian's linearization
    (H - G).block("fc1").for_many() @ v[: 4 * 6 + 6]
    assert model.calls == 3


def test_a_kept_gauss_newton_gives_way_to_a_hessian() -> None:
    _, problem = counting_problem()
    G, H = cs.GaussNewton(problem, keep=True), cs.Hessian(problem, keep=True)
    v = torch.randn(H.shape[0]).double()
    before = G @ v
    light = memory.size(t for b in batches(problem) for t in b.residuals())
    fresh = cs.Hessian(counting_problem()[1], keep=False) @ v
    assert_relative(H @ v, fresh, rtol=1e-12, what="H after G")
    full = memory.size(t for b in batches(problem) for t in b.residuals())
    assert full > light
    assert torch.equal(G @ v, before)


def test_the_plan_says_beforehand_what_is_held() -> None:
    _, problem = counting_problem()
    H = cs.Hessian(problem, keep=True)
    plan = H.plan
    assert plan.held == 0
    assert not batches(problem)
    H @ torch.randn(H.shape[0]).double()
    own = {p.data_ptr() for p in problem.model.parameters()}
    held = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for batch in batches(problem)
        for t in batch.residuals()
        if t.untyped_storage().data_ptr() not in own
    }
    assert sum(held.values()) == plan.needed == H.plan.held


def test_keep_true_refuses_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, problem = counting_problem()
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    v = torch.randn(problem.params.size).double()
    with pytest.raises(cs.CurvescopeError, match="keep=True does not fit into half"):
        cs.Hessian(problem, keep=True) @ v
    H = cs.Hessian(problem).for_many()  # "auto" streams
    assert H.keeping == "streamed"
    H @ v
    assert not batches(problem)


@pytest.mark.parametrize(
    "option", [{"keep": "always"}, {"columns": 0}, {"cuda_graph": True}, {"keeep": True}]
)
def test_options_are_checked(option: dict[str, object]) -> None:
    _, problem = counting_problem()
    with pytest.raises(
        cs.CurvescopeError,
        match=r"Hessian: (keep must be|columns must|cuda_graph|options are)",
    ):
        cs.Hessian(problem, **option)  # type: ignore[arg-type]


def test_changed_weights_do_not_reach_a_kept_operator() -> None:
    model, problem = counting_problem()
    H = cs.Hessian(problem, keep=True)
    v = torch.randn(H.shape[0]).double()
    H @ v
    with torch.no_grad():
        model.fc1.weight.add_(1.0)
    with pytest.raises(cs.CurvescopeError, match="weights have changed"):
        H @ v


def test_what_is_kept_goes_with_the_problem() -> None:
    """No cycle and no global table holds a linearization: memory is free at once."""
    _, problem = counting_problem()
    H = cs.Hessian(problem, keep=True)
    H @ torch.randn(H.shape[0]).double()
    gc.disable()
    try:
        kept = weakref.ref(batches(problem)[0])
        assert kept() is not None
        del H, problem
        assert kept() is None
    finally:
        gc.enable()


def test_a_streamed_operator_leaves_nothing_behind() -> None:
    """Ten batches streamed: afterwards only the model, the data, and the two vectors are there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 10))
    data = [(torch.randn(64, 300), torch.randint(10, (64,))) for _ in range(10)]
    problem = cs.Problem(model, data)
    H = cs.Hessian(problem, keep=False)
    v = torch.randn(H.shape[0])
    before = live_bytes()
    y = H @ v
    assert live_bytes() - before <= y.untyped_storage().nbytes() + 1024


@pytest.mark.slow
def test_streaming_ten_million_parameters_holds_one_batch_at_a_time() -> None:
    """While a product streams, at most one batch's linearization and a few vectors are alive."""
    torch.manual_seed(0)
    width = 2250
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    data = [(torch.randn(8, width), torch.randint(10, (8,))) for _ in range(3)]
    problem = cs.Problem(model, data)
    H = cs.Hessian(problem, keep=False)
    assert H.shape[0] > 10_000_000
    v = torch.randn(H.shape[0])
    vector = v.numel() * 4
    activations = 5 * 8 * width * 4
    peaks: list[int] = []
    before = live_bytes()
    model[0].register_forward_pre_hook(lambda *_: peaks.append(live_bytes() - before))
    H @ v  # measures what a product takes first, on a few samples
    assert len(peaks) == 4
    peaks.clear()
    before = live_bytes()
    H @ v
    assert len(peaks) == 3
    # At the start of each batch: the copy of v, the running sum, and nothing of earlier batches.
    assert max(peaks) <= 2 * vector + activations
    assert peaks[-1] <= peaks[1] + activations
