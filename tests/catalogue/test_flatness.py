"""The entries of FF at smoke scale: sound outcomes, and facts that hold at any size."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from curvescope import io
from curvescope.catalogue.entry import Entry, Outcome, Settings
from curvescope.catalogue.flatness import ENTRIES, solutions
from curvescope.catalogue.flatness.regression import regressions
from curvescope.networks import network
from curvescope.sharpness import SharpnessReport
from curvescope.training import train
from tests.catalogue.soundness import assert_sound

NAMES = {entry.name.split("/")[1]: entry for entry in ENTRIES}


@cache
def settings() -> Settings:
    return Settings("smoke", Path(mkdtemp(prefix="curvescope-")))


@cache
def outcome(name: str) -> Outcome:
    return NAMES[name].run(settings())


def row(name: str, what: str) -> float:
    (found,) = [row.ours for row in outcome(name).rows if row.what == what]
    return found


@pytest.mark.parametrize("entry", ENTRIES, ids=list(NAMES))
def test_an_outcome_is_finite_and_can_be_saved(entry: Entry) -> None:
    found = outcome(entry.name.split("/")[1])
    assert entry.scales == ("smoke", "small", "paper")
    assert_sound(found)
    assert all(note.endswith((".", ")")) for note in found.notes)


def test_logistic_regression_has_the_trace_and_the_eigenvalue_of_its_closed_form() -> None:
    outcome("logistic")
    data, test = solutions.digits(settings(), 1500, 500)
    X = torch.cat([data.X.flatten(1), torch.ones(1500, 1)], 1).double()
    kept, _ = io.read_tensors(settings().work / "flatness-logistic-weights-smoke-seed0.safetensors")
    for i, decay in enumerate(solutions.DECAYS):
        model = network("logistic", (1, 28, 28), 10)
        model.load_state_dict({key: kept[f"{i}.{key}"] for key in model.state_dict()})
        p = model.double()(data.X.double()).softmax(1).detach()
        trace = ((1 - p.square().sum(1)) * X.square().sum(1)).mean()
        mean = row("logistic", f"mean eigenvalue, weight decay {decay:g}")
        assert mean == pytest.approx(float(trace) / 7850, rel=0.02)  # 16 probes
        largest = row("logistic", f"λ₁, weight decay {decay:g}")
        assert largest == pytest.approx(_largest(X, p), rel=1e-5)
        right = (model(test.X.double()).argmax(1) == test.y).double().mean()
        shown = row("logistic", f"validation accuracy, per cent, weight decay {decay:g}")
        assert shown == pytest.approx(100 * float(right))


def _largest(X: torch.Tensor, p: torch.Tensor) -> float:
    """By scipy, from ``H v = mean over samples of (diag p − p pᵀ) v x xᵀ``."""

    def product(v: np.ndarray) -> np.ndarray:
        u = X @ torch.from_numpy(v.reshape(10, 785)).T
        return ((p * (u - (p * u).sum(1, keepdim=True))).T @ X / len(X)).flatten().numpy()

    H = LinearOperator((7850, 7850), matvec=product, dtype=np.float64)
    return float(eigsh(H, k=1, which="LA", return_eigenvectors=False, v0=np.ones(7850))[0])


def test_regressions_at_once_are_those_of_train() -> None:
    data, _ = solutions.digits(settings(), 200, 1)
    recipes = solutions.by_decay(epochs=6, lr=0.03, batch_size=200)  # one batch: no order
    states = regressions(data, list(recipes.values()), generator=torch.Generator())
    for recipe, state in zip(recipes.values(), states, strict=True):
        model = network("logistic", data.input_shape, 10)
        train(model, data, recipe)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(state[key], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(states[0]["fc1.weight"], states[-1]["fc1.weight"])


def test_weight_decay_shrinks_the_weights() -> None:
    norms = [row("mlp", f"‖w‖, weight decay {decay:g}") for decay in solutions.DECAYS]
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > norms[-1]


def test_both_modes_are_measured_and_differ() -> None:
    for name in ("batch-norm", "optimisers"):
        found = outcome(name)
        values = [r.ours for r in found.rows if "λ_max" in r.what and "over" not in r.what]
        assert len(values) == {"batch-norm": 6, "optimisers": 4}[name]
        assert len(set(values)) == len(values)
    saved = outcome("batch-norm").numbers
    for mode in ("train", "eval"):
        reports = [SharpnessReport.from_dict(r) for r in saved[mode]["reports"].values()]
        assert {r.mode for r in reports} == {mode}
        assert all(r.hessian.largest.value > r.hessian.mean_eigenvalue.value for r in reports)


def test_gadams_solution_is_an_average_and_is_sharper_than_sgds_here() -> None:
    # Six epochs do not fit the digits; what holds at this size is the order of the sharpness.
    assert row("optimisers", "tr H² / P of Gadam over that of SGD, train mode") > 1


def test_rescaling_does_what_is_predicted() -> None:
    judged = [r for r in outcome("rescaling").rows if r.agrees is not None]
    assert len(judged) == 5
    assert all(r.agrees for r in judged)
    moved = row("rescaling", "F-200^2: λ_max at α = 10 over that at α = 1")
    assert moved > 2
    chain = row("rescaling", "FF's example: trace at α = 10 over that at α = 1")
    # (w₂²w₃² + w₂²w₁² + w₁²w₃²) with w₂ = 20, w₃ = 0.15 over that with 2 and 1.5
    assert chain == pytest.approx((9 + 400 + 0.0225) / (9 + 4 + 2.25))


def test_most_of_the_spectrum_is_at_zero() -> None:
    # G of 100 samples and 10 classes has rank 900 at most, of 16,330.
    for epoch in (0, 1, 2, 4):
        assert 0.9 < row("degeneracy", f"mass of G nearest zero, epoch {epoch}") <= 1
    history = outcome("degeneracy").numbers
    for point in history["points"]:
        assert point["hessian"]["pair"]["value"] >= point["hessian"]["nearest"]["value"]


def test_a_second_run_reads_what_the_first_left(monkeypatch: pytest.MonkeyPatch) -> None:
    first = outcome("mlp")
    monkeypatch.setattr(solutions, "sharpness", None)  # would fail if called
    assert NAMES["mlp"].run(settings()) == first


def test_rows_at_smoke_do_not_stand_beside_the_papers() -> None:
    assert all(row.paper is None for row in outcome("logistic").rows)
    assert solutions.beside(Settings("small", Path()), outcome("logistic").rows)
