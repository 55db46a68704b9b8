"""The entries of FF at smoke scale: sound outcomes, and facts that hold at any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from curvescope import io
from curvescope.data import Dataset
from curvescope.data.places import MissingFiles
from curvescope.flatness import SharpnessReport
from curvescope.networks import network
from curvescope.operators.simple import Diagonal
from curvescope.studies.entry import Entry, Settings
from curvescope.studies.flatness import ENTRIES, by_network, solutions, weight_decay
from curvescope.studies.flatness.regression import regressions
from curvescope.studies.flatness.ritz import ritz
from curvescope.training import train
from tests.studies.smoke import smoke
from tests.studies.soundness import assert_sound

NAMES, settings, outcome = smoke(ENTRIES)


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
    (file,) = settings().work.glob("flatness-logistic-weights-smoke-seed0-*.safetensors")
    kept, _ = io.read_tensors(file)
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
    for name in ("batch-norm", "optimizers"):
        found = outcome(name)
        values = [r.ours for r in found.rows if "λ_max" in r.what and "over" not in r.what]
        assert len(values) == {"batch-norm": 6, "optimizers": 4}[name]
        assert len(set(values)) == len(values)
    saved = outcome("batch-norm").numbers
    for mode in ("train", "eval"):
        reports = [io.decode(SharpnessReport, r) for r in saved[mode]["reports"].values()]
        assert {r.mode for r in reports} == {mode}
        assert all(r.hessian.largest.value > r.hessian.mean_eigenvalue.value for r in reports)


def test_gadams_solution_is_an_average_and_is_sharper_than_sgds_here() -> None:
    # Six epochs do not fit the digits; what holds at this size is the order of the sharpness.
    assert row("optimizers", "tr H² / P of Gadam over that of SGD, train mode") > 1


def test_a_converged_ritz_value_counts_as_one_eigenvalue(tmp_path: Path) -> None:
    bulk = torch.linspace(-0.5, 0.5, 2000, dtype=torch.float64)
    outliers = torch.tensor([5.0, 8.0, 20.0], dtype=torch.float64)
    spectrum = torch.cat([bulk, outliers])
    A = Diagonal(spectrum)
    found = [ritz(Settings("smoke", tmp_path, seed=s), "r", A, steps=30) for s in range(8)]
    exact = float(spectrum.square().mean())
    ours = [abs(f.moment(2) / exact - 1) for f in found]
    sampled = [abs(float((f.masses * f.values**2).sum()) / exact - 1) for f in found]
    assert max(ours) < 0.1  # what one random vector makes of the bulk: 1.4 per cent
    assert sum(sampled) > 8 * 0.2
    assert all(f.largest == pytest.approx(20) for f in found)
    again = ritz(Settings("smoke", tmp_path), "r", A, steps=30)
    assert torch.equal(again.values, found[0].values)


def test_the_spectra_of_a_network_end_at_its_largest_eigenvalue() -> None:
    outcome("cnn")
    kept, _ = io.read_tensors(settings().work / "flatness-cnn-weight-decay-0-smoke.safetensors")
    model = network("LeNet5", (1, 28, 28), 10)
    model.load_state_dict({key.removeprefix("seed0."): value for key, value in kept.items()})
    data, _ = weight_decay.data(settings(), by_network.CNN)
    value = torch.nn.functional.cross_entropy(model.double()(data.X[:64].double()), data.y[:64])
    weights = list(model.parameters())
    gradient = torch.autograd.grad(value, weights, create_graph=True)
    flat = torch.cat([g.flatten() for g in gradient])

    def product(v: np.ndarray) -> np.ndarray:
        image = torch.autograd.grad(
            flat @ torch.from_numpy(v).flatten(), weights, retain_graph=True
        )
        return torch.cat([g.flatten() for g in image]).numpy()

    size = len(flat)
    H = LinearOperator((size, size), matvec=product, dtype=np.float64)
    largest = eigsh(H, k=1, which="LA", return_eigenvectors=False, v0=np.ones(size), tol=1e-6)[0]
    shown = row("cnn", "λ_max, weight decay 0")
    assert 0.99 * largest < shown < (1 + 1e-4) * largest  # eight steps, from below
    norm = sum(float(w.detach().square().sum()) for w in weights) ** 0.5
    assert row("cnn", "‖w‖, weight decay 0") == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("name", ["cnn", "preresnet", "wide-resnet"])
def test_a_tenfold_weight_decay_shrinks_the_weights(name: str) -> None:
    named = ("0", "10 × 0.0001", "10 × 0.0005")
    norms = [row(name, f"‖w‖, weight decay {decay}") for decay in named]
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > 1.005 * norms[-1]
    for solution in outcome(name).numbers["solutions"]:
        for spectrum in solution["spectra"].values():
            assert sum(spectrum["masses"]) == pytest.approx(1)


def test_gadams_result_is_not_its_last_epoch() -> None:
    found = outcome("optimizers-100")
    (picture,) = [p for p in found.pictures if p.name == "accuracy"]
    assert [len(curve.y) for curve in picture.panels[0].curves] == [6, 6, 1, 1]
    saved = found.numbers
    last = {which: saved[which]["test accuracy by epoch"][-1] for which in saved}
    assert saved["SGD"]["test"]["accuracy"] == last["SGD"]
    assert saved["Gadam"]["test"]["accuracy"] != last["Gadam"]


def test_the_gauss_newton_matrix_has_no_more_rank_than_its_samples_allow() -> None:
    found = outcome("degeneracy-residual")
    judged = [r for r in found.rows if r.agrees is not None]
    assert len(judged) == 6  # three points in two modes
    assert all(r.agrees and r.low is not None and r.low > 0.9 for r in judged)
    for mode in ("train", "eval"):
        for point in found.numbers[mode]["points"]:
            assert point["hessian"]["pair"]["value"] >= point["hessian"]["nearest"]["value"]


def test_cifar_100_is_taken_from_the_subset_or_from_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def fake(name: str, **_: object) -> Dataset:
        asked.append(name)
        if name == "cifar-100-subset":
            raise MissingFiles("dataset", "is not there")
        return Dataset(torch.zeros(1, 3, 2, 2), torch.tensor([0]), classes=100, name=name)

    monkeypatch.setattr(solutions, "dataset", fake)
    first, second = solutions.hundred(Settings("paper", Path()), 1, 1)
    assert asked == ["cifar-100-subset", "cifar-100", "cifar-100"]
    assert first.name == second.name == "cifar-100"


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
