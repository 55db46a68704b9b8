"""Papyan (2020) at the smallest scale: what adds up, and numbers against dense computations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from curvescope.spectra.exact import ExactSpectrum
from curvescope.studies import catalog
from curvescope.studies.outcome import Number, Outcome, compute
from curvescope.studies.papyan2020 import anatomy, attribution, dynamics, subjects
from curvescope.studies.run import Run
from curvescope.studies.study import Study
from curvescope.studies.trainings import first_classes
from curvescope.training.sweeps import Sweep

Made = Callable[[str], Outcome]


def study(name: str) -> Study:
    found = catalog.study_named(f"papyan2020/{name}")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("papyan2020")


@pytest.fixture(scope="module")
def made(work: Path) -> Made:
    """Each study is run once; studies share trained networks as they do for a user."""
    known: dict[str, Outcome] = {}

    def run(name: str) -> Outcome:
        if name not in known:
            known[name] = compute(Run(study(name), "smoke", work))[0]
        return known[name]

    return run


def value(outcome: Outcome, name: str) -> float:
    number: Number = outcome.values[name]
    return number.ours


# Networks ----------------------------------------------------------------------------------------


def test_the_rate_with_the_best_test_error_is_chosen(made: Made, work: Path) -> None:
    best = subjects.chosen(Run(study("attribution"), "smoke", work), "vgg")
    assert best.sweep.rates == (0.02, 0.1)
    assert best.sweep.rate == best.sweep.rates[int(np.argmin(best.sweep.scores))]
    wrong = (best.model(best.held_out.X).argmax(1) != best.held_out.y).double().mean()
    assert min(best.sweep.scores) == pytest.approx(float(wrong))
    assert value(made("attribution"), "test error") == pytest.approx(float(wrong))


def test_a_number_of_rates_is_a_grid_and_parts_are_not_trained_again(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, ...]] = []

    def instead(*arguments: Any, **_: object) -> Sweep:
        seen.append(tuple(arguments[3]))
        return Sweep((), (), ())

    monkeypatch.setattr(subjects, "sweep", instead)
    run = Run(study("attribution"), "smoke", work)
    monkeypatch.setitem(run.study.levels["smoke"].settings, "rates", 3)
    subjects.chosen(run, "vgg", per_class=2)
    assert seen == [pytest.approx((0.25, 0.005, 0.0001))]


def test_the_first_classes_of_a_data_set() -> None:
    from curvescope.data import dataset

    four = first_classes(dataset("mnist-6k", per_class=3), 4)
    assert (len(four), four.classes, int(four.y.max())) == (12, 4, 3)


# Attribution -------------------------------------------------------------------------------------


def test_the_parts_of_g_add_up(made: Made) -> None:
    found = made("attribution")
    parts = ("class", "cross", "within", "diagonal")
    left = [value(found, f"share of tr G left without the {part} part") for part in parts]
    assert sum(1 - share for share in left) == pytest.approx(1, abs=1e-9)
    counts = [value(found, f"outliers made by the {p} part") for p in ("global", *parts)]
    assert sum(counts) == value(found, "outliers of G, above the edge of its bulk")
    assert 0.5 < value(found, "eigenvalues above ε, Lanczos over exact") < 1.5
    rows = found.numbers["by rate"]
    assert list(rows) == ["0.02", "0.1"]
    assert all(row["samples that carry half of tr G"] >= 1 for row in rows.values())


def test_distances_of_known_spectra() -> None:
    values = torch.tensor([1e-4, 1e-2, 1e-2, 1.0], dtype=torch.float64)
    spectrum = ExactSpectrum(values, 6, "dual", 0)
    other = ExactSpectrum(values * torch.tensor([1.0, 1.0, 100.0, 1.0]), 6, "dual", 0)
    assert attribution.kolmogorov(spectrum, other, 1e-5) == pytest.approx(0.1)
    assert attribution.kolmogorov(spectrum, other, 1e-5, alone=True) == pytest.approx(0.25)


def test_a_density_has_an_eigenvalue_for_each() -> None:
    """Over the decades, those that are zero stand at ε."""
    values = torch.tensor([1e-3, 1e-2, 1.0], dtype=torch.float64)
    (curve,) = subjects.log_densities("", {"G": ExactSpectrum(values, 7, "dual", 0)}).curves
    x, y = np.log10(curve.x), np.array(curve.y)
    assert float(np.trapezoid(y, x)) == pytest.approx(10, rel=0.02)
    near = x < -4.5
    assert float(np.trapezoid(y[near], x[near])) == pytest.approx(7, rel=0.02)


# Anatomy -----------------------------------------------------------------------------------------


def test_what_is_left_of_g_against_a_dense_matrix(made: Made, work: Path) -> None:
    """Without the class part, by subtraction, from the definition of the class means (sec. 6)."""
    left = made("anatomy").numbers["left"]
    best = subjects.chosen(Run(study("anatomy"), "smoke", work), "four-digits", classes=anatomy.C)
    model, data, C = best.model.double(), best.data, anatomy.C
    parameters = list(model.parameters())
    w, g = np.zeros((len(data), C)), []
    for i, x in enumerate(data.X.double()):
        logits = torch.log_softmax(model(x[None])[0], 0)
        w[i] = logits.detach().exp().numpy() / len(data)
        for c in range(C):
            grads = torch.autograd.grad(-logits[c], parameters, retain_graph=True)
            g.append(torch.cat([part.flatten() for part in grads]).numpy())
    # In a basis of all gradients, outside of which both matrices are zero.
    basis = np.linalg.svd(np.array(g), full_matrices=False)[2]
    rows = (np.array(g) @ basis.T).reshape(len(data), C, -1)
    G = np.einsum("ic,icp,icq->pq", w, rows, rows)
    part = np.zeros_like(G)
    for c in range(C):
        mine = data.y.numpy() == c
        others = [k for k in range(C) if k != c]
        weights = w[mine][:, others]
        mean = np.einsum("ik,ikp->p", weights, rows[mine][:, others]) / weights.sum()
        part += weights.sum() * np.outer(mean, mean)
    whole, rest = (np.linalg.eigvalsh(matrix)[::-1] for matrix in (G, G - part))
    expected = rest[:C].sum() / whole[:C].sum()
    assert left["C outliers"]["class"] == pytest.approx(expected, rel=1e-3)
    several = slice(C, C * C)
    expected = rest[several].sum() / whole[several].sum()
    assert left["C² outliers"]["class"] == pytest.approx(expected, rel=1e-3)


def test_a_cell_of_the_table_is_beside_the_best_other_part(made: Made) -> None:
    found = made("anatomy")
    for feature, part in (("C outliers", "class"), ("C² outliers", "cross")):
        own = found.numbers["left"][feature]
        least = min(share for name, share in own.items() if name != part)
        name = f"gradients: {feature}, left without the {part} part over without another"
        assert value(found, name) == pytest.approx(own[part] / least)


# Dynamics ----------------------------------------------------------------------------------------


def test_more_training_and_the_change_of_distances(made: Made) -> None:
    found = made("dynamics")
    cells = [cell for key, cell in found.numbers.items() if key.startswith("8 per class")]
    assert cells[1]["loss"] < cells[0]["loss"]
    assert all(0 < cell["outliers"] <= 100 for cell in cells)
    # G exceeds its parts together, hence each of its eigenvalues does
    assert value(found, "C largest of G over those of the parts, mean, last cell") >= 1
    numbers = {
        "a": {"class": 3.0, "cross": 1.0, "within": 0.0},
        "b": {"class": 4.0, "cross": 5.0, "within": 0.0},
    }
    (share,) = dynamics.derive({}, numbers).values()
    assert share == pytest.approx(1 / 4)


def test_statistics_of_batch_norms_are_those_of_the_weights(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(study("dynamics"), "smoke", work / "norms")
    table = {**run.study.networks["vgg"], "smoke": {
        "network": "F-16-BN-ReLU", "data": "mnist-6k", "per_class": 8, "recipe": {"epochs": 4},
    }}  # fmt: skip
    monkeypatch.setitem(run.study.networks, "vgg", table)
    best = subjects.chosen(run, "vgg")
    for model in dynamics._history(run, best, 8, [1, 4]).values():
        hidden = model.get_submodule("fc1")(best.data.X.flatten(1))
        norm = model.get_submodule("bn-fc1")
        torch.testing.assert_close(norm.running_mean, hidden.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var, hidden.var(0), rtol=1e-4, atol=1e-5)


# Others ------------------------------------------------------------------------------------------


def test_outliers_of_the_hessian_are_those_of_g(made: Made) -> None:
    found = made("components")
    for split in ("train", "test"):
        mean = value(found, f"C largest of G over those of H, mean, {split}")
        assert mean == pytest.approx(1, abs=0.05)
        assert value(found, f"largest of E over the tenth of H, {split}") < 1


def test_the_largest_eigenvalue_of_the_hessian_by_power_iteration(made: Made, work: Path) -> None:
    found = made("hessian")
    run = Run(study("hessian"), "smoke", work)
    sizes = {}
    for name, images in run["data"].items():
        described = subjects.on(run.describe("hessian-vgg"), data=images)
        group = run.networks(f"hessian-{name}", described)
        (model,) = group.models
        for split, data in (("train", group.few), ("test", group.held_out.per_class(12))):
            loss = torch.nn.functional.cross_entropy(model(data.X), data.y)
            weights = list(model.parameters())
            gradients = torch.autograd.grad(loss, weights, create_graph=True)
            v, size = [torch.ones_like(weight) for weight in weights], 0.0
            for _ in range(200):
                size = sum(float((part**2).sum()) for part in v) ** 0.5
                v = [part / size for part in v]
                terms = [(g * part).sum() for g, part in zip(gradients, v, strict=True)]
                product = torch.stack(terms).sum()
                v = list(torch.autograd.grad(product, weights, retain_graph=True))
            sizes[split] = size
        ratio = value(found, f"{name}: λ₁ of H, test over train")
        assert ratio == pytest.approx(sizes["test"] / sizes["train"], rel=0.02)


def test_cfac_beats_kfac_in_the_last_layer(made: Made) -> None:
    found = made("factors")
    for data in ("mnist", "fashion-mnist"):
        assert value(found, f"{data}, last layer: outliers of CFAC over KFAC's misalignment") < 1
        assert value(found, f"{data}, last layer: cosine of g_c and δ_c ⊗ h_c, mean") > 0.95
    found, whole = made("anatomy"), "whole network: mean |ln λ − ln λ̂| of the C largest"
    assert value(found, f"{whole}, CFAC") < value(found, f"{whole}, KFAC")


def test_classes_separate_with_depth(made: Made) -> None:
    found = made("layers")
    for data in ("mnist", "fashion-mnist"):
        assert value(found, f"{data}, features: separation, last layer over first") > 1
        assert 1 < value(found, f"{data}, features: outliers in the last layer") <= 10
        assert value(found, f"{data}, errors: outliers in the last layer") <= 9
        # W_class has all the rank of the last layer
        assert value(found, f"{data}, weights of fc8: C largest without W_class over with") < 1e-6
        assert list(found.numbers[data]) == [f"fc{i}" for i in range(1, 9)]


def test_the_tails_of_e_are_symmetric(made: Made) -> None:
    found = made("tails")
    for images in ("200 test images", "1,000 test images"):
        assert value(found, f"{images}: largest over smallest eigenvalue") == pytest.approx(
            1, abs=0.3
        )
        assert abs(value(found, f"{images}: mean eigenvalue over the root mean square")) < 0.05


def test_finished_parts_are_not_computed_again(made: Made, work: Path) -> None:
    first = made("dynamics")
    said: list[str] = []
    again, _ = compute(Run(study("dynamics"), "smoke", work, tell=said.append))
    assert again.values == first.values
    assert not any("training" in line for line in said)
