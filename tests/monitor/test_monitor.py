"""What a monitor measures, when, what rings, and where the numbers go."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.monitor.events import Alarms
from curvescope.monitor.schedule import Budget
from curvescope.monitor.top import largest
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(1)).double()
Y = X[:, :3].argmax(1)


def network(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 5), *extra, nn.Tanh(), nn.Linear(5, 3))
    return layers.double()


def watch(model: nn.Module, opt: Any, **how: Any) -> cs.Monitor:
    how = {"probe": (X, Y), "every": 1} | how
    return cs.Monitor(model, optimizer=opt, generator=torch.Generator().manual_seed(0), **how)


def steps(model: nn.Module, opt: Any, count: int) -> Iterator[Tensor]:
    for _ in range(count):
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        yield loss


# Quantities ---------------------------------------------------------------------------------------


def test_batch_norm_is_that_of_training_steps_unless_asked_otherwise() -> None:
    model = network(nn.BatchNorm1d(5))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for mode in ("train", "eval"):
        monitor = watch(model, opt, track=("top",), mode=mode)
        next(steps(model, opt, 1))
        record = monitor.step()
        H = Reference(model, [(X, Y)], CrossEntropy(), mode=mode).hessian()
        assert record is not None
        dense = float(torch.linalg.eigvalsh(H)[-1])
        assert record.values["top/hessian"] == pytest.approx(dense, rel=1e-3)
        monitor.close()


def test_every_quantity_beside_dense_references() -> None:
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.4)
    monitor = watch(model, opt, track="full", pairs=3, tol=1e-5)
    before = [p.detach().clone() for p in model.parameters()]
    next(steps(model, opt, 1))
    record = monitor.step()
    assert record is not None
    values = record.values
    reference = Reference(model, [(X, Y)], CrossEntropy())
    eigenvalues = torch.linalg.eigvalsh(reference.hessian()).flip(0)
    for name, value in zip(("", "_2", "_3"), eigenvalues[:3].tolist(), strict=True):
        assert values[f"top/hessian{name}"] == pytest.approx(value, rel=1e-5)
        assert values[f"top/hessian{name}_residual"] <= 1e-5 * float(eigenvalues[0])
    G = reference.gauss_newton()
    trace, rank = float(G.trace()), float(G.trace()) ** 2 / float(G.square().sum())
    norm = sum(float(p.detach().square().sum()) for p in model.parameters())
    assert abs(values["trace/ggn"] - trace) < 4 * values["trace/error"]
    assert values["trace/metric"] - values["trace/ggn"] == pytest.approx(norm / 2)
    assert abs(values["rank/effective"] - rank) < 4 * values["rank/error"]
    moved = network()
    for place in (0.0, 0.5, 1.0, 1.5, 2.0):
        with torch.no_grad():
            for p, a, b in zip(moved.parameters(), before, model.parameters(), strict=True):
                p.copy_(a + place * (b - a))
        loss = nn.functional.cross_entropy(moved(X), Y).item()
        assert values[f"line/{place:g}"] == pytest.approx(loss, rel=1e-9)
    for name in monitor.track:
        assert values[f"{name}/seconds"] > 0
        assert values[f"{name}/products"] >= 0


def test_new_eigenvectors_are_picked_up_and_those_above_the_limit_followed() -> None:
    n, g = 60, torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(n, n, generator=g).double()).Q

    def matrix(*top: float) -> cs.LinearOperator:
        d = torch.linspace(0, 1, n).double()
        d[: len(top)] = torch.tensor(top, dtype=torch.float64)
        return cs.Dense(Q * d @ Q.T, symmetric=True)

    first = largest(matrix(9.0, 2.0, 2.5), above=3.0, generator=g)
    assert [round(v, 3) for v in first.values] == [9.0]
    # The second eigenvector overtakes the first, to which the start is nearly parallel.
    second = largest(matrix(9.0, 12.0, 2.5), start=first.start, above=3.0, generator=g)
    assert [round(v, 3) for v in second.values] == [12.0, 9.0]
    third = second
    for _ in range(4):  # one that appears out of nothing may take some looks
        third = largest(matrix(9.0, 12.0, 8.0), start=third.start, above=3.0, generator=g)
    assert [round(v, 2) for v in third.values] == [12.0, 9.0, 8.0]
    assert third.converged
    # A restart keeps what there is: more products than vectors are held.
    long = largest(matrix(1.02, 1.01), tol=1e-7, most=1, max_products=50, generator=g)
    assert long.products > 12
    assert long.values[0] == pytest.approx(1.02, rel=1e-6)
    A = matrix(1.02, 1.01)
    residual = (A @ long.vectors[0] - long.values[0] * long.vectors[0]).norm()
    assert float(residual) == pytest.approx(long.residuals[0], rel=1e-3, abs=1e-9)


# When ---------------------------------------------------------------------------------------------


def test_a_budget_is_kept_and_a_pause_brings_no_run_of_measurements() -> None:
    prices = {"top": 0.5, "directional": 0.05, "trace": 0.02}
    budget = Budget(0.05, tuple(prices), dict(prices))
    draw = random.Random(0)
    training = own = 0.0
    counts = dict.fromkeys(prices, 0)
    run = longest = 0  # of steps with measurements of the dearest, one after the other
    for step in range(20000):
        pause = 1000.0 if step == 10000 else 0.0
        seconds = draw.uniform(0.01, 0.05)
        training += seconds
        budget.earn(seconds + pause)
        due = budget.due()
        run = run + 1 if "top" in due else 0
        longest = max(longest, run)
        costs = {name: prices[name] * draw.uniform(0.5, 2.0) for name in due}
        budget.pay(costs)
        budget.spend(1e-4)
        own += sum(costs.values()) + 1e-4
        for name in due:
            counts[name] += 1
    assert 0.045 < own / training < 0.054  # and two prices of the pause
    assert longest <= 2
    assert counts["trace"] > counts["directional"] > counts["top"] > 20


def test_a_monitor_counts_its_own_time_and_that_of_the_training() -> None:
    class Clock:
        time = 0.0

        def __call__(self) -> float:
            self.time += 0.01
            return self.time

    clock = Clock()
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, opt, track=("directional", "top"), every=None, budget=0.1, clock=clock)
    assert "10% of the training's time" in str(monitor.price)
    assert set(monitor.price.seconds) == {"directional", "top"}
    taken = []
    for _ in steps(model, opt, 80):
        clock.time += 1.0
        taken.append(monitor.step())
    assert 0.02 < monitor.share <= 0.1
    measured = [set(r.values) for r in taken if r is not None]
    assert sum("top/hessian" in names for names in measured) > 10
    assert sum("directional/sharpness" in names for names in measured) > 10


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"track": "all"}, "`?track`? must be one of 'economy', 'standard', 'full'"),
        ({"track": ("sharp",)}, "must be one of 'directional', 'top'"),
        ({"track": ()}, "must name a quantity"),
        ({"budget": -0.1}, "must be at least 0"),
        ({"every": 0}, "every must be an integer of at least 1"),
        ({"mode": "test"}, "must be one of 'eval', 'train'"),
        ({"log": 3}, "must be a folder, a function of .dict, step. or a SummaryWriter"),
        ({"optimizer": 3}, "needs an optimizer with parameter groups, got int"),
        ({"optimizer": torch.optim.SGD([torch.ones(1)])}, "none of its parameters is a parameter"),
    ],
)
def test_wrong_settings_are_refused(how: dict[str, Any], message: str) -> None:
    g = torch.Generator()
    with pytest.raises(cs.CurvescopeError, match=message):
        cs.Monitor(network(), (X, Y), generator=g, **how)


def test_without_an_optimizer_the_loop_says_when_a_step_begins() -> None:
    model = network()
    monitor = watch(model, None, track=("directional",))
    with pytest.raises(cs.CurvescopeError, match=r"call before_step\(\) before each"):
        monitor.step()
    monitor = watch(model, None, track=("directional",))
    monitor.before_step()
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    record = monitor.step(7)
    assert record is not None
    assert record.step == 7
    assert record.values["directional/norm"] == pytest.approx(0.1 * math.sqrt(20))
    assert monitor.step(8) is None  # no step was made: there is nothing to compare with


# What rings ---------------------------------------------------------------------------------------


def test_a_rate_above_the_limit_rings_and_a_divergence_too(tmp_path: Path) -> None:
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    rung: list[cs.monitor.Event] = []
    seen: list[tuple[dict[str, float], int]] = []
    monitor = watch(
        model, opt, track=("top",), on_event=rung.append,
        log=[tmp_path / "log", lambda values, step: seen.append((values, step))],
    )  # fmt: skip
    for number, loss in enumerate(steps(model, opt, 6), 1):
        record = monitor.step(loss=loss)
        if number == 2:
            assert record is not None
            opt.param_groups[0]["lr"] = 3 / record.values["top/hessian"]
        if number == 5:
            with torch.no_grad():
                next(model.parameters()).mul_(math.inf)
    kinds = [event.kind for event in rung]
    assert kinds[0] == "edge of stability"
    assert rung[0].step == rung[0].since == 3
    assert "edge of stability since step 3: η λ = " in str(rung[0])
    assert "the limit is 2" in str(rung[0])
    assert "not finite" in kinds
    assert monitor.events == rung
    log = cs.monitor.read_log(tmp_path / "log")
    assert [str(event) for event in log.events] == [str(event) for event in rung]
    assert log.header.settings["optimizer"] == "SGD"
    at, values = log.series("top/hessian")
    assert at[:4] == [0, 1, 2, 3]
    assert values[0] > 0
    assert "top/threshold" in log.names
    assert [step for v, step in seen if "top/hessian" in v] == at
    assert any("event/edge_of_stability" in v for v, _ in seen)


def test_jumps_ring_once_and_noise_does_not() -> None:
    alarms = Alarms()
    draw = random.Random(1)
    for step in range(200):
        assert alarms.look(step, {"loss": 2 * 0.99**step * draw.uniform(0.7, 1.3)}, None) == []
    event = alarms.look(200, {"loss": 3.0}, None)[0]
    assert (event.kind, event.name, event.step) == ("jump", "loss", 200)
    assert "loss jumped to 3, the median before was" in event.message
    (event,) = alarms.train_loss(201, math.nan)
    assert event.kind == "not finite"
    assert alarms.train_loss(202, math.nan) == []  # known already
    ratios = [0.5, 0.95, 1.02, 0.97, 1.1, 0.8, 0.7, 1.0]
    events = [e for i, r in enumerate(ratios) for e in alarms.look(i, {"top/ratio": r}, 2.0)]
    assert [(e.kind, e.step, e.since) for e in events] == [
        ("edge of stability", 2, 2),
        ("edge left", 5, 2),
        ("edge of stability", 7, 7),
    ]
    again = Alarms()
    again.load(alarms.state())
    assert again == alarms


# Where the numbers go -----------------------------------------------------------------------------


def test_a_log_is_read_while_it_is_written_and_damage_is_found(tmp_path: Path) -> None:
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, opt, track=("trace",), log=str(tmp_path))
    path = tmp_path / "monitor.jsonl"
    for count, _ in enumerate(steps(model, opt, 3), 1):
        monitor.step()
        assert len(cs.monitor.read_log(tmp_path).records) == count + 1
    whole = path.read_text()
    path.write_text(whole[:-20])  # a line that is being written
    assert len(cs.monitor.read_log(path).records) == 3
    path.write_text(whole.replace('"step": 2', '"step": 1'))
    with pytest.raises(cs.CurvescopeError, match="is damaged, its checksum is wrong"):
        cs.monitor.read_log(path)
    path.write_text("")
    with pytest.raises(cs.CurvescopeError, match="holds no monitor's log"):
        cs.monitor.read_log(path)


def test_tensorboard_takes_the_same_numbers(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    writer = tensorboard.SummaryWriter(str(tmp_path))
    monitor = watch(model, opt, track=("top",), log=writer)
    records = [monitor.step() for _ in steps(model, opt, 3)]
    writer.close()
    read = EventAccumulator(str(tmp_path)).Reload()
    points = [(point.step, point.value) for point in read.Scalars("top/hessian")][1:]
    expected = [(r.step, r.values["top/hessian"]) for r in records if r is not None]
    assert points == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
