"""A loss from one file outside the package, through everything that takes one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.cli.app import run
from curvescope.errors import CurvescopeError
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.experiments.store import RunDirectory
from curvescope.reports import write_report
from curvescope.training.folder import TrainingFolder
from tests.extending.conftest import blocks

NET = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def load():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(30, 3, generator=g, dtype=torch.float64)
    return X, torch.poisson(1 + X[:, :2].square(), generator=g)
"""
QUICK = Settings(steps=8, probes=4, trace_probes=16)


def g() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def poisson(written: Callable[[str], Path]) -> Any:
    """The class of the page; beside it lies a file with a model and data."""
    place = written("loss")
    (place.parent / "net.py").write_text(NET)
    return import_module("poisson").Poisson


@pytest.fixture
def problem(poisson: Any, monkeypatch: pytest.MonkeyPatch) -> cs.Problem:
    monkeypatch.delitem(sys.modules, "net", raising=False)
    net = import_module("net")
    return cs.Problem(net.build(), net.load(), loss=poisson(), batch_size=7)


def jacobian(problem: cs.Problem) -> tuple[Tensor, Tensor, Tensor]:
    """``∂z/∂w [entries, n]``, ``z`` and ``y``, by torch alone."""
    X, y = import_module("net").load()
    names = list(problem.params.names)
    weights = {name: p.detach() for name, p in problem.model.named_parameters()}

    def output(w: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(problem.model, w, (X,)).flatten()

    rows = torch.func.jacrev(output)(weights)
    J = torch.cat([rows[name].reshape(y.numel(), -1) for name in names], 1)
    return J, output(weights), y.flatten()


def test_operators(problem: cs.Problem) -> None:
    """Against torch's own loss, differentiated twice, and against the formulas."""
    torchs = cs.Problem(problem.model, import_module("net").load(), loss=F.poisson_nll_loss)
    J, z, y = jacobian(problem)
    n = len(y)
    assert float(problem.value()) == pytest.approx(float((z.exp() - y * z).mean()), rel=1e-12)
    torch.testing.assert_close(problem.gradient(), J.T @ (z.exp() - y) / n)
    H, G = cs.Hessian(problem), cs.GaussNewton(problem)
    torch.testing.assert_close(H.dense(), cs.Hessian(torchs).dense())
    expected = J.T @ (z.exp()[:, None] * J) / n
    torch.testing.assert_close(G.dense(), expected)
    assert G.psd
    torch.testing.assert_close(
        cs.EmpiricalFisher(problem).dense(), J.T @ ((z.exp() - y).square()[:, None] * J) / n
    )
    drawn = cs.MonteCarloFisher(problem, samples=4000, generator=g()).dense()
    assert float((drawn - expected).norm() / expected.norm()) < 0.03
    spectrum = cs.exact_spectrum(G)
    values = torch.linalg.eigvalsh(expected)
    torch.testing.assert_close(spectrum.values, values[-len(spectrum.values) :], atol=1e-12, rtol=0)


def test_layers(problem: cs.Problem) -> None:
    """The closed form of a layer's block, and its Kronecker factors."""
    G = cs.GaussNewton(problem)
    whole, block = G.dense(), G.block("2")
    torch.testing.assert_close(block.dense(), whole[-12:, -12:])
    factors = cs.kronecker_factors(problem, layers="2", bias=False)["2"]
    z = problem.model(import_module("net").load()[0])
    torch.testing.assert_close(factors.output_hessian, torch.diag(z.exp().mean(0)).detach() / 2)


def test_penalty_and_sharpness(problem: cs.Problem) -> None:
    X, y = import_module("net").load()
    term = cs.TraceRegularizer("ggn", weight=1.0, loss=problem.loss, generator=g())
    mean = sum(float(term(problem.model, X, y).detach()) for _ in range(400)) / 400
    assert mean == pytest.approx(float(cs.GaussNewton(problem).dense().trace()), rel=0.1)
    report = cs.sharpness(problem, test=problem, probes=8, generator=g())
    assert report.train.loss.value == pytest.approx(float(problem.value()))
    assert report.train.error is None


def test_what_needs_classes_is_refused_in_one_sentence(problem: cs.Problem) -> None:
    for call in (cs.class_structure, cs.structure.attribute_outliers, cs.structure.class_knockouts):
        with pytest.raises(CurvescopeError, match=r"tells classes apart, .*, got 'poisson'$"):
            call(problem)
    with pytest.raises(CurvescopeError, match="needs one class label for each sample"):
        cs.structure.cfac(problem)
    start = {name: p.clone() for name, p in problem.model.state_dict().items()}
    data = import_module("net").load()
    with pytest.raises(CurvescopeError, match=r"needs tensors X \[N, …\] and y \[N\]"):
        cs.certify(problem.model, start, data, generator=g())


def test_training(poisson: Any, problem: cs.Problem, tmp_path: Path) -> None:
    data, recipe = import_module("net").load(), cs.Recipe(seed=0, epochs=40, lr=0.05)
    before = float(problem.value())
    model = import_module("net").build()
    trained = cs.train(model, data, recipe, test=data, loss=poisson(), folder=tmp_path / "run")
    after = cs.Problem(model, data, loss=poisson()).value()
    assert trained.train is not None
    assert trained.train.loss == pytest.approx(float(after), rel=1e-12)
    assert trained.train.loss < before - 0.1
    assert trained.train.accuracy != trained.train.accuracy  # there are no right answers
    assert cs.evaluate(model, data, loss=poisson()).loss == trained.train.loss
    config = TrainingFolder(tmp_path / "run").config
    assert config.loss == f"poisson {poisson().identity}"
    assert config.recipe.loss is None
    again = cs.train(
        import_module("net").build(), data, recipe, loss=poisson(), folder=tmp_path / "run"
    )
    assert again.train is not None
    assert again.train.loss == trained.train.loss
    assert [epoch.loss for epoch in again.history] == [epoch.loss for epoch in trained.history]
    with pytest.raises(CurvescopeError, match=r"loss is 'poisson .* there and 'mse .* here"):
        cs.train(
            import_module("net").build(), data, recipe, loss=nn.MSELoss(), folder=tmp_path / "run"
        )
    with pytest.raises(CurvescopeError, match="targets must be a tensor of counts from 0 on"):
        cs.train(model, (data[0], -data[1]), recipe, loss=poisson())


def test_analysis_and_report(problem: cs.Problem, tmp_path: Path) -> None:
    result = analyze(problem, tmp_path / "run", seed=0, settings=QUICK)
    assert [check for _, check in result.checks() if not check.passed] == []
    assert not any(name.startswith("classes") for name in result.stages)
    page = write_report(result.path, figures=False).read_text(encoding="utf-8")
    assert "poisson loss" in page


def test_a_changed_loss_is_another_configuration(problem: cs.Problem, tmp_path: Path) -> None:
    analyze(problem, tmp_path / "run", seed=0, layers=[], settings=QUICK)
    changed = type(problem.loss)()
    changed.scale = 2.0
    other = cs.Problem(problem.model, import_module("net").load(), loss=changed, batch_size=7)
    with pytest.raises(CurvescopeError, match="holds a run with another configuration"):
        analyze(other, tmp_path / "run", seed=0, layers=[], settings=QUICK)


@pytest.mark.usefixtures("poisson")
def test_the_command_of_the_page() -> None:
    (command,) = blocks("loss", "sh")
    name, *words = shlex.split(command)
    assert name == "curvescope"
    quick = ["--steps", "8", "--probes", "4", "--no-figures", "--quiet"]
    assert run([*words, *quick]) == 0
    assert RunDirectory("runs/counts").config.loss == "poisson"


@pytest.mark.usefixtures("poisson")
def test_what_is_no_loss_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "--model", "net.py:build", "--data", "net.py:load", "--out", "runs/x"]
    assert run([*words, "--loss", "poisson.py:Other"]) == 2
    assert "has no 'Other'" in capsys.readouterr().err
    assert run([*words, "--loss", "poisson.py:torch"]) == 2
    assert "needs a name or a callable" in capsys.readouterr().err
