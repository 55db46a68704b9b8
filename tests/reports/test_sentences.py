"""Sentences and tables say what the numbers of the run say, whatever these are."""

from __future__ import annotations

import html
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from curvescope.experiments.analyze import analyze
from curvescope.experiments.best_values import best_values, best_values_of
from curvescope.experiments.configuration import Settings
from curvescope.experiments.quantities import LARGEST, QUANTITIES, SMALLEST, TRACE
from curvescope.experiments.stages.class_layers import ClassLayerFindings
from curvescope.experiments.stages.spectra import spectra_of
from curvescope.experiments.store import Finding, RunDirectory, Stage
from curvescope.problem import Problem
from curvescope.reports.blocks import Table
from curvescope.reports.page import render
from curvescope.reports.sections import classes, layers, overview, provenance, spectra
from curvescope.reports.sections.overview import cell
from tests.experiments.examples import failed, reconfigured, rewritten

FEW = Settings(steps=10, probes=4, trace_probes=16, outliers=3, layer_pairs=4)


def analyzed(place: Path, model: nn.Module, y: torch.Tensor, loss: str) -> RunDirectory:
    X = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return analyze(Problem(model.double(), (X, y), loss=loss), place, seed=0, settings=FEW)


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    y = torch.randn(20, 2, generator=g, dtype=torch.float64)
    return analyzed(tmp_path_factory.mktemp("own") / "r", nn.Linear(4, 2), y, "mse")


def cells(page: str, caption: str) -> dict[str, list[str]]:
    """The rows of one table of a page."""
    region = re.search(rf'aria-label="{re.escape(caption)}">(.*?)</table>', page, re.DOTALL)
    assert region is not None, caption
    found = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", region[1], re.DOTALL):
        texts = [html.unescape(text) for text in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        found[texts[0]] = texts[1:]
    return found


# Numbers -------------------------------------------------------------------------------------


def test_the_table_of_the_report_is_that_of_the_results(first: RunDirectory) -> None:
    rows = cells(render(first), "Measures of sharpness")
    noted = first.stage("summary", Any).result["values"]
    for quantity in QUANTITIES:
        texts = [cell(quantity, best_values(first)[matrix][quantity]) for matrix in noted]
        assert rows[quantity] == texts
    assert rows[TRACE][0].endswith(" exact")
    assert rows[TRACE][0] == rows[TRACE][1]
    assert "±" not in "".join(rows[TRACE] + rows[LARGEST] + rows[SMALLEST])


def test_an_unfinished_run_shows_its_estimates_as_such(first: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(first.path, tmp_path / "run")
    place = tmp_path / "run" / "stages"
    for name in first.stages[3:]:
        shutil.rmtree(place / name)
    shutil.rmtree(place / "sharpness")
    rewritten(
        tmp_path / "run",
        "spectrum-H",
        lambda stage: replace(stage, result=replace(stage.result, exact=None)),
    )
    rows = cells(render(RunDirectory(tmp_path / "run")), "Measures of sharpness")
    assert "±" in rows[TRACE][0]
    assert "±" in rows[LARGEST][0]
    assert "exact" not in rows[TRACE][0]


# Sentences -----------------------------------------------------------------------------------


def test_a_regression_is_not_told_about_classes(regression: RunDirectory) -> None:
    for module in (overview, spectra, layers, provenance):
        section = module.build(regression)
        assert section is not None
        text = f"{section.observation} {section.claim} {section.assessment}"
        assert "cross-entropy" not in text
        assert not re.search(r"here \d+", text)
    found = spectra.build(regression)
    assert found is not None
    assert "regression is left for future work" in found.claim
    assert found.assessment == ""
    assert classes.build(regression) is None


def test_a_matrix_that_vanishes_is_said_to_and_not_drawn(regression: RunDirectory) -> None:
    found = spectra.build(regression)
    assert found is not None
    chart, method = found.blocks[0], found.blocks[1]
    assert "E vanishes and is not drawn" in method.text
    assert {curve.label[0] for curve in chart.panel.curves} == {"H", "G"}


def test_a_model_without_layers_says_so(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ self.scale)

    run = analyzed(tmp_path / "own", Own(), torch.arange(20) % 3, "cross_entropy")
    found = layers.build(run)
    assert found is not None
    assert found.observation.startswith("There is no layer to look into")
    assert found.blocks == ()
    assert "The network has 12 parameters" in render(run)


def test_the_verdict_on_spectra_follows_the_numbers(first: RunDirectory) -> None:
    found = spectra_of(first)
    table = best_values(first)

    def with_outliers(values: list[float]) -> str:
        H = found["H"]
        measure = replace(H.measure, outliers=torch.tensor(values, dtype=torch.float64))
        return spectra.assessment({**found, "H": replace(H, measure=measure)}, table, 3)

    assert "After the 3rd eigenvalue of H there is a gap (a factor of 8.00" in with_outliers(
        [9.0, 8.5, 8.0, 1.0, 0.5]
    )
    assert "there is no clear gap (a factor of 1.07" in with_outliers([9.0, 8.5, 8.0, 7.5, 0.5])
    assert "are not quite those of G" in with_outliers([9.0, 8.5, 8.0, 7.5, 0.5])
    assert "are those of G" in spectra.assessment(found, table, 3)
    # Negative values among those of largest magnitude are no outliers of the upper end.
    assert "gap (a factor of 8.00" in with_outliers([-20.0, 9.0, 8.5, 8.0, 1.0])


def test_the_bulk_is_said_to_be_E_s_only_where_it_is(first: RunDirectory) -> None:
    found = spectra_of(first)
    table = best_values(first)
    assert "owes little to E" in spectra.assessment(found, table, 10)
    narrow = {name: dict(row) for name, row in table.items()}
    known_part = float(found["G"].measure.outliers.double().norm())
    narrow["G"]["Frobenius norm"] = replace(
        narrow["G"]["Frobenius norm"], value=1.0001 * known_part
    )
    assert "is largely that of E" in spectra.assessment(found, narrow, 10)


def test_the_bulk_lies_within_the_spectrum(first: RunDirectory, regression: RunDirectory) -> None:
    for run in (first, regression):
        spectrum, row = spectra_of(run)["H"], best_values(run)["H"]
        low, high = spectra._bulk(spectrum)
        assert row[SMALLEST].value - 1e-12 <= low <= high <= row[LARGEST].value
        sampled = replace(spectrum, exact=None)
        low, high = spectra._bulk(sampled)
        room = 1e-6 * row[LARGEST].value
        assert row[SMALLEST].value - room <= low <= high <= row[LARGEST].value + room


def test_layers_are_counted_where_the_papers_numbers_hold(first: RunDirectory) -> None:
    found = layers.build(first)
    assert found is not None
    aligned = [
        first.stage(name, Any).result["value"]["alignment"] >= 0.964
        for name in first.stages
        if name.startswith("layer-")
    ]
    assert f"(v₁ᵀÊ[x])² is at least 0.964 in {sum(aligned)} of {len(aligned)}" in found.assessment
    assert "batch norm" not in found.claim


def test_cfac_is_said_to_be_nearer_only_where_it_is(first: RunDirectory, tmp_path: Path) -> None:
    found = classes.build(first)
    assert found is not None
    assert "CFAC is nearer to G than KFAC" in found.assessment
    shutil.copytree(first.path, tmp_path / "run")

    def exchanged(stage: Stage[Any]) -> Stage[Any]:
        value = stage.result.value
        errors = {"KFAC": value.factors.errors["CFAC"], "CFAC": value.factors.errors["KFAC"]}
        value = replace(value, factors=replace(value.factors, errors=errors))
        return replace(stage, result=replace(stage.result, value=value))

    rewritten(tmp_path / "run", "classes-fc2", exchanged)
    other = classes.build(RunDirectory(tmp_path / "run"))
    assert other is not None
    assert "CFAC is no nearer to G than KFAC" in other.assessment
    assert other.observation != found.observation


def test_a_failed_check_in_single_precision_comes_with_advice(
    first: RunDirectory, tmp_path: Path
) -> None:
    shutil.copytree(first.path, tmp_path / "run")
    rewritten(tmp_path / "run", "summary", failed)
    assert " and 1 does not." in provenance.build(RunDirectory(tmp_path / "run")).observation
    assert "float64" not in provenance.build(RunDirectory(tmp_path / "run")).observation
    reconfigured(tmp_path / "run", dtype="float32")
    assert "float64 tells" in provenance.build(RunDirectory(tmp_path / "run")).observation


# Pictures ------------------------------------------------------------------------------------


def charts_of(section) -> dict:
    return {chart.id: chart for chart in section.charts()}


def test_heat_maps_say_what_of_the_whole_they_show(first: RunDirectory) -> None:
    found = charts_of(layers.build(first))
    assert found["layer0-true-input"].note == (
        "Shown: the first 8 of 512 true eigenvectors against the first 40 of 64 of E[xxᵀ]."
    )
    assert "against all 8 of E[M]" in found["layer0-true-output"].note


def test_zeros_are_counted_beside_a_logarithmic_axis(first: RunDirectory) -> None:
    found = charts_of(classes.build(first))
    chart = found["class1-cfac"]
    below = first.stage("classes-fc2", Any).result["value"]["factors"]["below"]
    assert f"{100 * below['G']:.2f} % of G" in chart.note
    heights = {curve.label.split(" ")[0]: curve.y for curve in chart.panel.curves}
    assert heights["G"][0] < max(heights["G"])  # no spike at the left edge


def test_curves_that_lie_over_each_other_differ_in_dash_and_width(first: RunDirectory) -> None:
    curves = charts_of(classes.build(first))["knockouts"].panel.curves
    looks = [(curve.dash, curve.width) for curve in curves]
    assert len(set(looks)) == len(looks) == 4
    assert curves[0].label == "G"  # the first one lies underneath
    assert curves[0].width > 2


def test_eigenvalues_that_are_rounding_are_left_out_and_counted(first: RunDirectory) -> None:
    found = charts_of(classes.build(first))
    layer = first.result("classes-fc2", Finding[ClassLayerFindings]).value
    assert layer is not None
    total = layer.moments["errors"].total
    kept = int((total > 1e-10 * total[0]).sum())
    curve = found["class1-errors"].panel.curves[0]
    assert len(curve.y) == kept < len(total)
    assert f"{len(total) - kept} of the first {len(total)} are zero" in found["class1-errors"].note


def test_what_is_best_of_a_report_alone(first: RunDirectory) -> None:
    """Of the other mode of a batch norm only the report is known: its columns come from that."""
    from curvescope.experiments.stages import sharpness

    report = first.result("sharpness", sharpness.Sharpness).primary
    assert set(best_values_of({}, report)) == {"H", "G"}


def test_narrow_tables_stay_tables_and_wide_ones_become_cards() -> None:
    assert not Table("", ["", "value"], [["trace", "51.2 ± 0.1"]]).stacked
    row = ["largest eigenvalue", "7.77319 ± 9·10⁻⁶", "7.85333 exact", "0.486235 ± 7·10⁻⁷"]
    assert Table("", ["", "H", "G", "E"], [row]).stacked
    assert Table("", ["a", "b"], [["x", "y"]], prose=True).stacked
    assert not Table("", ["", "H"], []).stacked
