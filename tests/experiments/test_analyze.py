"""The analysis against dense matrices, interrupted and continued, and read without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.experiments.analyze import analyze, choose_layers
from curvescope.experiments.configuration import Settings
from curvescope.experiments.stages import spectra
from curvescope.experiments.stages.class_layers import ClassLayerFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.stages.sharpness import Sharpness
from curvescope.experiments.store import Finding, RunDirectory
from curvescope.problem import Problem
from curvescope.spectra.control import Progress
from curvescope.structure.layer_comparison import LayerComparison
from tests.experiments.examples import QUICK, data, problems, quick_run, trained
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy


@pytest.fixture(scope="module")
def dense() -> dict[str, Tensor]:
    reference = Reference(trained(), [data()], CrossEntropy())
    H, G = reference.hessian(), reference.gauss_newton()
    return {"H": H, "G": G, "E": H - G}


def test_every_stage_is_there_and_every_check_agrees(finished: RunDirectory) -> None:
    assert finished.complete
    assert finished.stages[:2] == ("overview", "sharpness")
    assert {"layer-fc1", "layer-fc2", "classes", "classes-fc1", "summary"} < set(finished.stages)
    assert [check.statement for _, check in finished.checks() if not check.passed] == []
    assert len(finished.checks()) > 20


@pytest.mark.parametrize("name", spectra.MATRICES)
def test_spectra_are_those_of_the_dense_matrices(
    finished: RunDirectory, dense: dict[str, Tensor], name: str
) -> None:
    found = spectra.spectra_of(finished)[name]
    values = torch.linalg.eigvalsh(dense[name])
    largest = values[values.abs().argsort(descending=True)[: len(found.residuals)]]
    torch.testing.assert_close(
        found.measure.outliers.sort().values, largest.sort().values, atol=1e-4, rtol=1e-3
    )
    assert abs(found.trace.value - float(values.sum())) <= 4 * found.trace.stderr + 1e-9
    assert abs(found.frobenius.value - float(values.norm())) <= 4 * found.frobenius.stderr
    assert found.exact is not None
    everything = torch.cat([found.exact.values, torch.zeros(found.exact.zeros).double()])
    torch.testing.assert_close(everything.sort().values, values, atol=1e-9, rtol=1e-7)


def test_the_overview_is_that_of_the_model(finished: RunDirectory) -> None:
    overview, (X, y) = finished.result("overview", Overview), data()
    assert overview.parameters == 64 * 8 + 8 + 8 * 10 + 10
    output = trained()(X).detach()
    assert overview.train.samples == len(y)
    assert overview.train.loss == pytest.approx(float(nn.functional.cross_entropy(output, y)))
    wrong = float((output.argmax(1) != y).double().mean())
    assert overview.train.error == pytest.approx(wrong)
    assert overview.layers == {"fc1": 520, "fc2": 90}


def test_the_sharpness_table_is_that_of_the_dense_hessian(
    finished: RunDirectory, dense: dict[str, Tensor]
) -> None:
    report = finished.result("sharpness", Sharpness).primary
    values = torch.linalg.eigvalsh(dense["H"])
    assert report.hessian.trace.value == pytest.approx(float(values.sum()))
    assert report.hessian.largest.value == pytest.approx(float(values[-1]))


def test_layers_are_those_of_the_dense_block(
    finished: RunDirectory, dense: dict[str, Tensor]
) -> None:
    found = finished.result("layer-fc1", Finding[LayerComparison]).value
    assert found is not None
    block = dense["H"][: 64 * 8, : 64 * 8]
    torch.testing.assert_close(
        found.true, torch.linalg.eigvalsh(block).flip(0)[:8], atol=1e-5, rtol=1e-3
    )
    assert (found.outputs, found.inputs) == (8, 64)
    assert bool((found.overlap <= 1 + 1e-9).all())
    assert bool((found.ratio > 0).all())
    assert found.correspondences["true input"].shape == (40, 8)
    # A Kronecker product's own eigenvectors belong to one eigenvector of each factor.
    own = found.correspondences["approximate output"]
    torch.testing.assert_close(own.max(0).values, torch.ones(8), atol=1e-4, rtol=0)


def test_classes_are_those_of_the_dense_matrix(
    finished: RunDirectory, dense: dict[str, Tensor]
) -> None:
    found = finished.result("classes", Finding[ClassFindings]).value
    assert found is not None
    values = torch.linalg.eigvalsh(dense["G"]).flip(0)
    torch.testing.assert_close(found.attribution.values[:20], values[:20], atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(found.attribution.shares.sum(1), torch.ones(400).double())
    assert float(found.without["class"].sum()) < float(found.whole.sum())
    layer = finished.result("classes-fc2", Finding[ClassLayerFindings]).value
    assert layer is not None
    factors = layer.factors
    assert factors is not None
    assert 0 < factors.errors["CFAC"].frobenius < factors.errors["KFAC"].frobenius
    width = float((factors.centers[1] / factors.centers[0]).log10())
    for name, density in factors.densities.items():
        assert float(density.sum()) * width + factors.below[name] == pytest.approx(1.0)
    # What is zero stands beside the bins, not in the first of them.
    block = torch.linalg.eigvalsh(dense["G"][-90:-10, -90:-10])
    zeros = float((block <= factors.floor).double().mean())
    assert factors.below["G"] == pytest.approx(zeros)
    assert zeros > 0


def test_an_interrupted_analysis_goes_on_to_the_same_numbers(
    finished: RunDirectory, tmp_path: Path
) -> None:
    told: list[str] = []
    steps = 0

    def interrupt(progress: Progress) -> None:
        nonlocal steps
        steps += progress.task == "spectral_measure" and told[-1] == "spectrum-G"
        if steps == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        quick_run(tmp_path, tell=told.append, progress=interrupt)
    half = RunDirectory(tmp_path)
    assert half.stages == ("overview", "sharpness", "spectrum-H")
    assert (half.folder("spectrum-G") / "work" / "density.safetensors").exists()

    told.clear()
    whole = quick_run(tmp_path, tell=told.append)
    assert told[0] == "spectrum-G"
    for name in finished.stages:
        a, b = (run.stage(name, Any) for run in (finished, whole))  # arrays by their checksums
        assert (a.result, a.checks) == (b.result, b.checks), name


def test_another_seed_or_other_weights_are_refused(finished: RunDirectory) -> None:
    with pytest.raises(CurvescopeError, match="seed is 0 there and 1 here"):
        analyze(
            problems()[0], finished.path, seed=1, test=problems()[1], settings=QUICK,
            names={"data": "forty digits"},
        )  # fmt: skip
    train, test = problems(seed=5)
    with pytest.raises(CurvescopeError, match=r"model\.identity is"):
        analyze(
            train, finished.path, seed=0, test=test, settings=QUICK, names={"data": "forty digits"}
        )


def test_the_density_is_rebuilt_from_the_directory(finished: RunDirectory) -> None:
    curve = spectra.spectra_of(RunDirectory(finished.path))["H"].measure.density()
    assert curve.mass == pytest.approx(1 - 6 / 610, abs=1e-3)  # six outliers were taken out


def test_layers_can_be_chosen_and_wrong_ones_are_refused() -> None:
    problem, _ = problems()
    assert choose_layers(problem, None) == ("fc1", "fc2")
    assert choose_layers(problem, ["fc2"]) == ("fc2",)
    with pytest.raises(CurvescopeError, match="'fc9' is no layer of a known kind"):
        choose_layers(problem, ["fc9"])


def test_a_model_that_is_one_layer_is_looked_into(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(30, 4, generator=g, dtype=torch.float64)
    problem = Problem(nn.Linear(4, 3).double(), (X, torch.arange(30) % 3))
    assert choose_layers(problem, None) == ("",)
    run = analyze(problem, tmp_path, seed=0, settings=QUICK)
    found = run.result("layer-~", Finding[LayerComparison]).value
    assert found is not None
    assert (found.outputs, found.inputs) == (3, 4)
    assert run.has("classes-~")
    assert spectra.spectra_of(run)["E"].vanishes


def test_a_regression_has_no_classes(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    X, y = (torch.randn(20, k, generator=g, dtype=torch.float64) for k in (3, 2))
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    run = analyze(Problem(model, (X, y), loss="mse"), tmp_path, seed=0, settings=QUICK)
    assert run.complete
    assert not any(name.startswith("classes") for name in run.stages)
    assert run.result("overview", Overview).train.error is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"steps": 0}, "steps must be"),
        ({"trace_probes": 5}, "trace_probes must be an integer of at least 6, got 5"),
        ({"tolerance": 0.0}, "tolerance must be"),
    ],
)
def test_wrong_settings_are_one_sentence(setting, words: str) -> None:
    with pytest.raises(CurvescopeError, match=words):
        Settings(**setting)


def test_what_cannot_be_analyzed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    X, y = torch.randn(12, 4), torch.arange(12) % 3
    X[7, 2] = float("inf")
    with pytest.raises(CurvescopeError, match="NaN or infinite numbers, in batch 1; remove them"):
        analyze(Problem(nn.Linear(4, 3), (X, y), batch_size=6), tmp_path / "a", seed=0)

    class Noisy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.randn_like(x))

    with pytest.raises(CurvescopeError, match="output is random"):
        analyze(Problem(Noisy(4, 3), (X.nan_to_num(posinf=0.0), y)), tmp_path / "b", seed=0)
    assert list(tmp_path.iterdir()) == []
