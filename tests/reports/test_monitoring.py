"""The pages of a training that a monitor watches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import curvescope as cs
from curvescope.figures.monitoring import monitored
from curvescope.monitor import MonitorLog, read_log
from curvescope.reports.compare import compare
from curvescope.reports.monitoring import growing, of_folder, render_monitor, sections_of
from curvescope.reports.page import fill
from curvescope.reports.runs import find_runs
from curvescope.reports.training import render_training
from curvescope.training import Recipe

pytest.importorskip("jinja2")


def watched(folder: Path, kind: type = torch.optim.SGD, rate: float = 1.0) -> MonitorLog:
    torch.manual_seed(0)
    X = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    y = X[:, :3].argmax(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = kind(model.parameters(), lr=rate)
    monitor = cs.Monitor(
        model, (X, y), optimizer=optimizer, track="full", every=2, log=folder,
        generator=torch.Generator().manual_seed(2),
    )  # fmt: skip
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
        monitor.step()
    return read_log(folder)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MonitorLog]:
    folder = tmp_path_factory.mktemp("monitored")
    return {
        "sgd": watched(folder / "sgd", rate=20.0),
        "adam": watched(folder / "adam", torch.optim.Adam, 0.01),
    }


def test_curves_are_those_of_the_log(logs: dict[str, MonitorLog]) -> None:
    log = logs["sgd"]
    panels = monitored({"": log})
    [eigenvalue, limit] = panels["top/hessian"].curves
    steps, values = log.series("top/hessian")
    assert list(eigenvalue.x) == steps == [0, 2, 4, 6]
    assert eigenvalue.y == pytest.approx(values, rel=1e-5)
    assert limit.y == pytest.approx([2 / 20.0] * 4, rel=1e-5)
    assert limit.dash == "dashed"
    _, residuals = log.series("top/hessian_residual")
    assert eigenvalue.high is not None
    expected = [v + r for v, r in zip(values, residuals, strict=True)]
    assert eigenvalue.high == pytest.approx(expected, rel=1e-5)
    assert panels["top/hessian"].lines == {"edge of stability": float(log.events[0].step)}
    assert "top/preconditioned" not in panels
    noise = panels["noise/scale"].curves[0]
    assert noise.low is None or all(a <= b for a, b in zip(noise.low, noise.y, strict=True))


def test_the_limit_stands_beside_the_eigenvalue_that_it_belongs_to(
    logs: dict[str, MonitorLog],
) -> None:
    panels = monitored({"": logs["adam"]})
    assert [c.dash for c in panels["top/preconditioned"].curves] == ["", "dashed"]
    assert [c.dash for c in panels["top/hessian"].curves] == [""]
    both = monitored(logs)
    assert [c.label for c in both["top/hessian"].curves][:1] == ["sgd"]
    assert {c.label for c in both["loss"].curves} == {"sgd", "adam"}
    assert both["top/hessian"].lines is None


def test_the_page(logs: dict[str, MonitorLog], tmp_path: Path) -> None:
    watched(tmp_path / "run", rate=20.0)
    page = render_monitor(tmp_path / "run")
    assert "Curvature during training" in page
    assert "edge of stability since step" in page
    assert 'http-equiv="refresh"' in page
    log = tmp_path / "run" / "monitor.jsonl"
    os.utime(log, (1.0, 1.0))
    assert not growing(tmp_path / "run")
    assert 'http-equiv="refresh"' not in render_monitor(tmp_path / "run")
    [section] = sections_of(logs)
    assert section.observation == ""
    assert of_folder(tmp_path) == []


def test_any_log_can_be_plotted(logs: dict[str, MonitorLog]) -> None:
    pytest.importorskip("matplotlib")
    figure = cs.plot(logs["adam"])
    titles = [a.get_title(loc="left").replace("\n", " ") for a in figure.axes if a.get_visible()]
    shown = [panel.title for panel in monitored({"": logs["adam"]}).values()]
    assert [title for title in titles if title] == shown


def test_the_viewer_lists_shows_and_compares_logs(tmp_path: Path) -> None:
    """A log without a run of ours, and that of a training: rows, pages and both in one picture."""
    watched(tmp_path / "loop", rate=20.0)
    X = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    how = {"track": ("top",), "every": 2, "probe": 32}
    recipe = Recipe(seed=0, epochs=2, batch_size=8, lr=0.5)
    trained = tmp_path / "trained"
    cs.train(nn.Linear(4, 3), (X, X[:, :3].argmax(1)), recipe, folder=trained, monitor=how)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "monitor.jsonl").write_text("theirs\n")
    runs = {run.id: run for run in find_runs(tmp_path)}
    assert {name: run.kind for name, run in runs.items()} == {
        "loop": "monitor", "trained": "training", "torn": "monitor",
    }  # fmt: skip
    assert runs["loop"].state == "running"
    event = read_log(tmp_path / "loop").events[-1]
    assert runs["loop"].numbers["last event"] == f"{event.kind}, step {event.step}"
    assert float(runs["trained"].numbers["of the limit"]) < 1
    assert not runs["torn"].page
    assert runs["torn"].state.startswith("damaged")
    picked = [runs["loop"], runs["trained"]]
    section = next(s for s in compare(picked) if s.id == "curvature")
    page = fill("report.html.j2", title="", sections=[section], heading="", under="")
    assert "Sequential, limit of stability" in page
    assert f"{runs['trained'].name}, limit of stability" in page
    assert "The curvature is below" in render_training(trained)
    os.utime(tmp_path / "loop" / "monitor.jsonl", (0, 0))
    assert {run.id: run.state for run in find_runs(tmp_path)}["loop"] == "stopped"
