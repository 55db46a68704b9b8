"""The entries of TR at the smallest scale: what they find is what theory says, and adds up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curvescope.spectra.exact import ExactSpectrum
from curvescope.studies.entry import Outcome, Row, Settings
from curvescope.studies.traces import ENTRIES, subjects
from curvescope.studies.traces.tails import power_law
from tests.studies.soundness import assert_sound

NAMES = {entry.name: entry for entry in ENTRIES}
Run = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Each entry is run once; entries share trained networks as they do for a user."""
    settings = Settings("smoke", tmp_path_factory.mktemp("traces"))
    known: dict[str, Outcome] = {}

    def run(name: str) -> Outcome:
        if name not in known:
            known[name] = NAMES[name].run(settings)
        return known[name]

    return run


def value(found: Outcome, what: str) -> float:
    """The number of the one row that begins so."""
    (row,) = [row for row in found.rows if row.what.startswith(what)]
    return row.ours


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_gives_finite_rows_and_drawable_pictures(name: str, outcome: Run) -> None:
    found = outcome(name)
    assert found.pictures
    assert_sound(found)


def test_the_parts_of_g_add_up(outcome: Run) -> None:
    found = outcome("traces/attribution")
    parts = ("class", "cross", "within", "diagonal")
    left = [value(found, f"share of tr G left without the {part}") for part in parts]
    assert sum(1 - share for share in left) == pytest.approx(1, abs=1e-9)
    made = [value(found, f"outliers made by the {p}") for p in ("global", *parts)]
    assert sum(made) == value(found, "outliers of G")
    assert value(found, "largest eigenvalue, Lanczos") == pytest.approx(1, abs=1e-4)
    few, many = value(found, "eigenvalues above 1e-5, L"), value(found, "eigenvalues above 1e-5, e")
    assert 0.5 * many < few < 1.5 * many


def test_finished_parts_are_kept(tmp_path: Path) -> None:
    said: list[str] = []
    settings = Settings("smoke", tmp_path, tell=said.append)
    entry = NAMES["traces/dynamics"]
    first = entry.run(settings)
    spoken = len(said)
    assert entry.run(replace(settings, tell=said.append)) == first
    assert len(said) == spoken > 0


def test_more_training_and_more_examples(outcome: Run) -> None:
    found = outcome("traces/dynamics")
    cells = [cell for key, cell in found.numbers.items() if key.startswith("8 per class")]
    assert cells[1]["loss"] < cells[0]["loss"]
    assert all(0 < cell["outliers"] <= 100 for cell in cells)
    # G exceeds its class part, hence each of its eigenvalues does
    assert value(found, "C largest of G over those of the class part") >= 1


def test_theorem_and_estimators_meet_their_bounds(outcome: Run) -> None:
    assert value(outcome("traces/logistic-model"), "theorem 8.1") < 1e-12
    assert value(outcome("traces/logistic-model"), "error falls wherever") == 1
    for row in outcome("traces/verification").rows:
        assert row.agrees is not False, row


def test_outliers_of_the_hessian_are_those_of_g(outcome: Run) -> None:
    found = outcome("traces/spectra")
    for split in ("train", "test"):
        assert value(found, f"C largest of G over those of H, mean, {split}") == pytest.approx(
            1, abs=0.05
        )
        assert value(found, f"largest of E over the tenth of H, {split}") < 1
    assert value(found, "train: C largest of H against") < 1e-3
    assert value(found, "test: λᵢ(H) ≥") == 1


def test_cfac_beats_kfac_in_the_last_layer(outcome: Run) -> None:
    found = outcome("traces/kfac")
    for data in ("mnist", "fashion-mnist"):
        assert value(found, f"{data}, last layer: outliers of CFAC") < 1
        assert value(found, f"{data}, last layer: cosine of g_c and") > 0.95
        assert value(found, f"{data}: layers of 8 where CFAC is nearer to G, frobenius") >= 6


def test_classes_separate_with_depth(outcome: Run) -> None:
    found = outcome("traces/features-errors")
    for data in ("mnist", "fashion-mnist"):
        assert value(found, f"{data}, features: separation") > 1
        assert 1 < value(found, f"{data}, features: outliers in the last layer") <= 10
        assert value(found, f"{data}, weights of fc8") < 1e-6  # W_class has all its rank
        layers = found.numbers[data]["layers"]
        assert list(layers) == [f"fc{i}" for i in range(1, 9)]


def test_the_tails_of_e_are_symmetric(outcome: Run) -> None:
    found = outcome("traces/tails")
    assert value(found, "largest over smallest eigenvalue") == pytest.approx(1, abs=0.3)
    assert abs(value(found, "mean eigenvalue over the root mean square")) < 0.05


def test_a_power_law_needs_points() -> None:
    x = torch.logspace(-4, 0, 41, dtype=torch.float64)
    assert power_law(x, 2 * x**-1.5).exponent == pytest.approx(-1.5, abs=1e-12)
    assert math.isnan(power_law(x, torch.zeros(41)).exponent)


def test_histogram_and_distance_of_known_spectra() -> None:
    values = torch.tensor([1e-4, 1e-2, 1e-2, 1.0], dtype=torch.float64)
    spectrum = ExactSpectrum(values, 6, "dual", 0)
    edges = subjects.decades({"": spectrum})
    curve = subjects.histogram("", spectrum, edges)
    assert sum(curve.y) == pytest.approx(10)
    assert curve.y[0] == pytest.approx(6)
    other = ExactSpectrum(values * torch.tensor([1.0, 1.0, 100.0, 1.0]), 6, "dual", 0)
    assert subjects.kolmogorov(spectrum, other, 1e-5) == pytest.approx(0.1)
    assert subjects.kolmogorov(spectrum, other, 1e-5, alone=True) == pytest.approx(0.25)
    assert Row("", 1.0, low=0.0, high=2.0).agrees
