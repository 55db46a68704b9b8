"""Granziol (2020) at the smallest scale: numbers against dense computations, and what adds up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.stats import kendalltau

from curvescope.data import Dataset
from curvescope.flatness.ranks import kendall
from curvescope.networks import network
from curvescope.operators.simple import Diagonal
from curvescope.spectra import spectral_measure
from curvescope.studies import catalog
from curvescope.studies.granziol2020 import degeneracy, mlp, solutions
from curvescope.studies.networks import Group
from curvescope.studies.outcome import Outcome, compute
from curvescope.studies.run import Run
from curvescope.studies.study import Study
from curvescope.training import Fit

Made = Callable[[str], Outcome]
F64 = torch.float64


def study(name: str) -> Study:
    found = catalog.study_named(f"granziol2020/{name}")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("granziol2020")


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


# Logistic regression ------------------------------------------------------------------------------


def test_logistic_regression_has_the_trace_and_the_eigenvalue_of_its_closed_form(
    made: Made, work: Path
) -> None:
    outcome = made("logistic")
    groups = solutions.by_decay(Run(study("logistic"), "smoke", work), "logistic")
    for decay, group in groups.items():
        X = torch.cat([group.data.X.flatten(1), torch.ones(len(group.data), 1)], 1).double()
        p = group.models[0].double()(group.data.X.double()).softmax(1).detach()
        trace = ((1 - p.square().sum(1)) * X.square().sum(1)).mean()
        mean = value(outcome, f"tr H / P, γ = {decay:g}")
        assert mean == pytest.approx(float(trace) / 7850, rel=0.15)  # two probes
        largest = value(outcome, f"‖H‖, γ = {decay:g}")
        assert largest == pytest.approx(_largest(X, p), rel=1e-4)


def _largest(X: torch.Tensor, p: torch.Tensor) -> float:
    """By scipy, from ``H v = mean over samples of (diag p − p pᵀ) v x xᵀ``."""

    def product(v: np.ndarray) -> np.ndarray:
        u = X @ torch.from_numpy(v.reshape(10, 785)).T
        return ((p * (u - (p * u).sum(1, keepdim=True))).T @ X / len(X)).flatten().numpy()

    H = LinearOperator((7850, 7850), matvec=product, dtype=np.float64)
    return float(eigsh(H, k=1, which="LA", return_eigenvectors=False, v0=np.ones(7850))[0])


# The perceptron -----------------------------------------------------------------------------------


def test_the_perceptron_has_the_papers_number_of_parameters() -> None:
    for scale in ("smoke", "small", "paper"):
        described = Run(study("mlp"), scale, Path()).describe("mlp")
        model = network(described.network, (1, 28, 28), 10)
        assert sum(p.numel() for p in model.parameters()) == 9960
        assert [tuple(p.shape) for p in model.parameters() if p.ndim == 2] == [
            (10, 784), (100, 10), (10, 100)
        ]  # fmt: skip


def test_the_columns_belong_to_the_solutions(made: Made, work: Path) -> None:
    outcome = made("mlp")
    run = Run(study("mlp"), "smoke", work)
    setting, described = next(iter(mlp.settings(run)))
    assert setting == "pixels in [−1, 1], rate 0.05"
    group = solutions.by_decay(run, "mlp-symmetric-0.05", described)[5e-4]
    assert len(group.models) == 2
    errors, gaps, norms = zip(*map(_fits(group), group.models), strict=True)
    assert value(outcome, "ΔE, γ = 0.0005") == pytest.approx(np.mean(errors), abs=1e-4)
    assert value(outcome, "ΔL, γ = 0.0005") == pytest.approx(np.mean(gaps), abs=1e-5)
    assert value(outcome, "‖w‖, γ = 0.0005") == pytest.approx(np.mean(norms), rel=1e-5)
    a = np.mean(norms) / 2 + value(outcome, "tr H / P, γ = 0.0005")
    assert value(outcome, "a, γ = 0.0005") == pytest.approx(a, rel=1e-5)


def _fits(group: Group) -> Callable[[torch.nn.Module], tuple[float, float, float]]:
    @torch.no_grad()
    def fits(model: torch.nn.Module) -> tuple[float, float, float]:
        def of(data: Dataset) -> tuple[float, float]:
            z = model(data.X)
            right = float((z.argmax(1) == data.y).double().mean())
            return 100 * right, float(torch.nn.functional.cross_entropy(z, data.y))

        (train, loss), (test, held_out) = of(group.data), of(group.held_out)
        norm = sum(float(w.detach().square().sum()) for w in model.parameters()) ** 0.5
        return train - test, held_out - loss, norm

    return fits


def test_weight_decay_shrinks_the_weights(made: Made) -> None:
    for name, of in (("mlp", ""), ("by-network", ", All-CNN-C"), ("batch-norm", "")):
        norms = [value(made(name), f"‖w‖{of}, γ = {decay:g}") for decay in solutions.DECAYS]
        assert norms == sorted(norms, reverse=True)
        assert norms[0] > 1.001 * norms[-1]


def test_orders_are_those_of_scipy(made: Made) -> None:
    outcome = made("by-network")

    def column(what: str) -> list[float]:
        return [value(outcome, f"{what}, All-CNN-C, γ = {decay:g}") for decay in solutions.DECAYS]

    for what in ("a", "‖H‖"):
        tau = value(outcome, f"Kendall's τ of {what} and ΔL, All-CNN-C")
        assert tau == pytest.approx(kendalltau(column(what), column("ΔL")).statistic)


def test_the_printed_tables_have_the_orders_that_are_claimed() -> None:
    printed = {
        c.value: c.paper for c in study("by-network").criteria if c.cite.startswith("anonym")
    }
    for of in ("All-CNN-C", "PreResNet-164", "WideResNet-28x10"):
        columns = {
            what: [printed[f"{what}, {of}, γ = {decay:g}"] for decay in solutions.DECAYS]
            for what in ("a", "‖H‖", "ΔL")
        }
        assert kendall(columns["a"], columns["ΔL"]) == 1  # type: ignore[arg-type]
        assert kendall(columns["‖H‖"], columns["ΔL"]) == -1  # type: ignore[arg-type]


# Spectra ------------------------------------------------------------------------------------------


def test_a_converged_ritz_value_counts_as_one_eigenvalue() -> None:
    bulk = torch.linspace(-0.5, 0.5, 2000, dtype=F64)
    spectrum = torch.cat([bulk, torch.tensor([5.0, 8.0, 20.0], dtype=F64)])
    A, exact = Diagonal(spectrum), float(spectrum.square().mean())
    ours, sampled = [], []
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        measure = spectral_measure(A, steps=30, reorthogonalize=True, generator=g)
        ours.append(abs(solutions.moment(measure, 2) / exact - 1))
        sampled.append(abs(measure.moment(2).value / exact - 1))
    assert max(ours) < 0.1  # what one random vector makes of the bulk: 1.4 per cent
    assert sum(sampled) > 8 * 0.2


def test_the_spectra_of_a_network_end_at_its_largest_eigenvalue(made: Made, work: Path) -> None:
    outcome = made("by-network")
    group = solutions.by_decay(Run(study("by-network"), "smoke", work), "All-CNN-C")[0.0]
    found = []
    for model in group.models:
        loss = torch.nn.functional.cross_entropy(model.double()(group.few.X.double()), group.few.y)
        weights = list(model.parameters())
        flat = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, weights, create_graph=True)]
        )

        def product(v: np.ndarray, flat=flat, weights=weights) -> np.ndarray:  # type: ignore[no-untyped-def]
            image = torch.autograd.grad(
                flat @ torch.from_numpy(v).flatten(), weights, retain_graph=True
            )
            return torch.cat([g.flatten() for g in image]).numpy()

        size = len(flat)
        H = LinearOperator((size, size), matvec=product, dtype=np.float64)
        found.append(
            eigsh(H, 1, which="LA", return_eigenvectors=False, v0=np.ones(size), tol=1e-6)[0]
        )
    shown = value(outcome, "‖H‖, All-CNN-C, γ = 0")
    assert 0.99 * np.mean(found) < shown < (1 + 1e-4) * np.mean(found)  # eight steps, from below


def test_both_modes_are_measured_and_differ(made: Made) -> None:
    outcome = made("batch-norm")
    values = [
        value(outcome, f"‖H‖, {mode} mode, γ = {decay:g}")
        for mode in ("train", "eval")
        for decay in solutions.DECAYS
    ]
    assert len(set(values)) == 6


def test_gadams_result_is_not_its_last_epoch(work: Path) -> None:
    outcome, pictures = compute(Run(study("optimizers"), "smoke", work))
    (picture,) = [p for p in pictures if p.name == "accuracy"]
    for panel in picture.panels:
        curves = {curve.label: curve for curve in panel.curves}
        assert [len(curve.y) for curve in curves.values()] == [6, 1, 6, 1]
        assert all(curve.low is not None for curve in curves.values())  # over the seeds
        ends = {
            name: value(outcome, f"test accuracy, {name}, {panel.title}")
            for name in ("SGD", "Gadam")
        }
        assert curves["SGD, result"].y[0] == pytest.approx(ends["SGD"], rel=1e-5)
        assert curves["SGD"].y[-1] == pytest.approx(ends["SGD"], rel=1e-5)
        assert curves["Gadam, result"].y[0] == pytest.approx(ends["Gadam"], rel=1e-5)
        assert abs(curves["Gadam"].y[-1] - ends["Gadam"]) > 1e-3


# Differences --------------------------------------------------------------------------------------


def test_a_gain_counts_beyond_two_standard_errors() -> None:
    def solution(right: torch.Tensor) -> solutions.Solution:
        none = Fit(0.0, 0.0)
        return solutions.Solution(0, none, none, right, 1.0, {})

    g = torch.Generator().manual_seed(0)
    before = torch.rand(1000, generator=g) < 0.8
    slightly, much = before.clone(), before.clone()
    slightly[(~before).nonzero()[:6, 0]] = True  # six more, and four fewer
    slightly[before.nonzero()[:4, 0]] = False
    much[(~before).nonzero()[:40, 0]] = True
    assert solutions.gain([solution(before)], [solution(slightly)]).number < 0
    found = solutions.gain([solution(before)], [solution(much)])
    assert found.number > 0
    assert found.note == "+4 ± 0.62, one seed"
    with pytest.raises(AssertionError, match="no spread"):
        solutions.beyond([1.0])
    assert solutions.beyond([1.0, 1.1], upper=True).number > 1.1


# Mass at zero -------------------------------------------------------------------------------------


def test_mass_away_from_zero_is_seen() -> None:
    def derived(G: float, H: float, place: float) -> dict[str, float]:
        point = {
            "gauss_newton": {"nearest": {"value": G}, "nearest_value": place},
            "hessian": {"pair": {"value": H}, "pair_value": 1e-3},
        }
        history = {
            "points": [point],
            "parameters": 10_000,
            "bound": 1,
            "samples": 50,
            "classes": 11,
        }
        return degeneracy.derive({}, {"VGG-16": history})

    criteria = [c for c in study("degeneracy").criteria if "VGG-16" in c.value]

    def verdicts(*case: float) -> list[bool]:
        found = derived(*case)
        return [c.agrees(found[c.value]) for c in criteria]

    assert verdicts(0.96, 0.97, 1e-6) == [True, True, True]
    assert verdicts(0.4, 0.9, 1e-1) == [False, False, False]


def test_two_nearest_have_more_mass_than_one(made: Made) -> None:
    for history in made("degeneracy").numbers.values():
        for point in history["points"]:
            assert point["hessian"]["pair"]["value"] >= point["hessian"]["nearest"]["value"]


def test_rescaling_moves_the_curvature(made: Made) -> None:
    outcome = made("rescaling")
    assert value(outcome, "F-200^2: λ_max at α = 10 over that at α = 1") > 2
    chain = value(outcome, "the paper's example: trace at α = 10 over that at α = 1")
    # (w₂²w₃² + w₂²w₁² + w₁²w₃²) with w₂ = 20, w₃ = 0.15 over that with 2 and 1.5
    assert chain == pytest.approx((9 + 400 + 0.0225) / (9 + 4 + 2.25))


def test_a_second_run_reads_what_the_first_left(made: Made, work: Path) -> None:
    first = made("mlp")

    def files() -> dict[Path, int]:
        return {
            file: file.stat().st_mtime_ns
            for file in work.rglob("*.safetensors")
            if file.stat().st_size
        }

    before = files()
    assert compute(Run(study("mlp"), "smoke", work))[0].values == first.values
    assert files() == before
