"""The PAC-Bayes paper of 2021 at the smallest scale: what adds up, and facts of any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.studies import catalog
from curvescope.studies.anonymous2021 import small_loss
from curvescope.studies.outcome import Outcome, compute
from curvescope.studies.run import Run
from curvescope.studies.study import Study

Made = Callable[[str], Outcome]


def study(name: str) -> Study:
    found = catalog.study_named(f"anonymous2021/{name}")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("anonymous2021")


@pytest.fixture(scope="module")
def made(work: Path) -> Made:
    """Each study is run once."""
    known: dict[str, Outcome] = {}

    def run(name: str) -> Outcome:
        if name not in known:
            known[name] = compute(Run(study(name), "smoke", work))[0]
        return known[name]

    return run


def value(outcome: Outcome, name: str) -> float:
    return outcome.values[name].ours


def test_the_trace_survives_and_the_squares_do_not(made: Made) -> None:
    for each in made("subsampling").numbers["studies"]:
        whole = each["study"]
        smallest = min(whole["subsamples"], key=lambda s: s["size"])
        assert smallest["square_sum"]["value"] > whole["square_sum"]["value"]


def test_a_point_of_the_training_against_a_dense_hessian(made: Made, work: Path) -> None:
    outcome = made("small-loss")
    run = Run(study("small-loss"), "smoke", work)
    points = outcome.numbers["points"]["without"]
    assert [p["loss"] for p in points] == sorted((p["loss"] for p in points), reverse=True)
    assert points[-1]["loss"] == value(outcome, "loss at the end")
    g = torch.Generator().manual_seed(0)
    X, y = torch.rand(60, 196, dtype=torch.float64, generator=g), torch.arange(60) % 10
    model = small_loss.network(run, 196, 10, torch.nn.ReLU)
    assert [p.ndim for p in model.parameters()] == [2, 2, 2]  # no biases, as in the theorem
    found = small_loss._point(run, "dense", model, X, y)
    eigenvalues = torch.linalg.eigvalsh(Hessian(Problem(model, (X, y))).dense())
    assert found.largest == pytest.approx(float(eigenvalues.abs().max()), rel=1e-3)
    assert found.largest <= found.bound
    assert found.norm**2 == pytest.approx(
        sum(float(p.detach().square().sum()) for p in model.parameters())
    )


def test_the_exponent_is_that_of_a_power_law() -> None:
    points = [
        small_loss.Point(loss=x, norm=1.0, largest=3 * x**0.7, trace=x, frobenius=1.0, bound=1.0)
        for x in (1.0, 0.1, 0.01, 0.001)
    ]
    assert small_loss.exponent(points, "largest") == pytest.approx(0.7)
    assert small_loss.exponent(points, "frobenius") == pytest.approx(0.0)


def test_smooth_units_follow_their_hessian_and_kinks_do_not(made: Made) -> None:
    outcome = made("small-loss")
    name = "the same without the slope, random shifts of 0.1 % of ‖w‖, {}, with weight decay"
    assert value(outcome, name.format("tanh")) == pytest.approx(1, abs=0.01)
    assert value(outcome, name.format("ReLU")) > 1.5


def test_penalties_are_compared_seed_by_seed(made: Made) -> None:
    outcome = made("regularizer")
    for case in ("fitted", "unfitted"):
        change = (
            value(outcome, f"test accuracy, {case}, η = 0.0001")
            - value(outcome, f"test accuracy, {case}, η = 0")
        )  # fmt: skip
        gained = outcome.values[
            f"gain in accuracy by the penalty, {case}, less two standard errors, points"
        ]
        assert gained.ours < change
        mean, _, error = gained.note.partition(",")[0].partition(" ± ")
        assert float(mean) == pytest.approx(change, rel=0.02, abs=0.01)
        assert gained.ours == pytest.approx(change - 2 * float(error), rel=0.05, abs=0.05)
    assert value(outcome, "a step with the penalty over a plain one") > 1
