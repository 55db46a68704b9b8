"""How much memory a streamed product takes, and batches that are cut until they fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope._state import watching
from curvescope.engine.engine import Engine
from curvescope.engine.fitting import Living
from curvescope.record import memory


def problem(samples: int = 64, mode: str = "eval") -> cs.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.BatchNorm1d(32), nn.Linear(32, 32), nn.Tanh(),
        nn.Linear(32, 3),
    ).double()  # fmt: skip
    X, y = torch.randn(samples, 8).double(), torch.arange(samples) % 3
    return cs.Problem(model, (X, y), mode=mode)


OPERATORS = {"H": cs.Hessian, "G": cs.GaussNewton, "empirical": cs.EmpiricalFisher}


def test_bytes_of_what_lives() -> None:
    with watching(Living()) as living:
        a = torch.ones(100, dtype=torch.float64)
        b = a.view(10, 10) + 1
        del a
        c = b.T
        b += 1
        del b
        assert (living.now, living.most) == (800, 1600)
        del c
    assert living.now == 0


@pytest.mark.parametrize("name", OPERATORS)
def test_the_plan_s_peak_is_that_of_a_product(name: str) -> None:
    A = OPERATORS[name](problem(256), keep=False)
    v = torch.randn(A.shape[1]).double()
    A @ v
    with watching(Living()) as living:
        A @ v
    assert A.plan.peak == pytest.approx(living.most, rel=0.25)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_batch_that_does_not_fit_is_cut(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = OPERATORS[name](problem(), keep=False)
    assert whole.plan.samples is None
    V = torch.randn(whole.shape[1], columns).double()
    peak = whole.plan.peak
    monkeypatch.setattr(memory, "free", lambda _: peak)  # of which half may be taken
    of = problem()
    A = OPERATORS[name](of, keep=False)
    sizes: list[int] = []
    output = cs.Problem.output

    def counted(self: Any, variables: Any, batch: Any) -> Any:
        sizes.append(len(batch.inputs))
        return output(self, variables, batch)

    assert f"in pieces of {A.plan.samples} samples" in str(A.plan)
    with monkeypatch.context() as patch:
        patch.setattr(cs.Problem, "output", counted)
        product = A @ V
    assert A.plan.samples is not None
    assert max(sizes) == A.plan.samples < 64
    assert not A.for_many().plan.keeps
    assert sum(sizes) == 64
    torch.testing.assert_close(product, whole @ V, rtol=1e-10, atol=1e-12)


def test_samples_that_see_each_other_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    H = cs.Hessian(problem(mode="train"), keep=False)
    v = torch.randn(H.shape[1]).double()
    wanted = H @ v
    monkeypatch.setattr(memory, "free", lambda _: 1000)
    again = problem(mode="train")
    assert torch.equal(cs.Hessian(again, keep=False) @ v, wanted)
    assert again.companion(Engine)._linearizer.sizes == {(True, again.params.names): None}


def test_drawn_targets_stay_with_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    F = cs.MonteCarloFisher(problem(), samples=2, generator=torch.Generator().manual_seed(0))
    v = torch.randn(F.shape[1]).double()
    wanted = F @ v
    monkeypatch.setattr(memory, "free", lambda _: 1000)
    F = cs.MonteCarloFisher(problem(), samples=2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(F @ v, wanted)
