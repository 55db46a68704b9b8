"""The figures show the numbers that were saved, and are drawn once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curvescope import io
from curvescope.experiments.stages.class_layers import ClassLayerFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.experiments.store import Finding, RunDirectory, Stage
from curvescope.figures import stages as pictures
from curvescope.figures import structure, style
from curvescope.figures.model import Panel, Picture
from curvescope.reports import figures
from curvescope.reports.figures import figures_of, write_figures
from curvescope.reports.page import write_report
from curvescope.structure.layer_comparison import LayerComparison
from tests.experiments.examples import rewritten


def labeled(panel: Panel) -> dict:
    return {curve.label: curve for curve in panel.curves}


def close(values: torch.Tensor) -> object:
    return pytest.approx(values.tolist(), rel=1e-5)


def test_every_stage_with_a_picture_has_one(first: RunDirectory) -> None:
    assert [picture.name for picture in figures_of(first)] == [
        *("spectrum-H", "spectrum-G", "spectrum-E", "layer-fc1", "layer-fc2"),
        *("classes", "classes-fc1", "classes-fc2", "spectra"),
    ]


def test_figures_are_written_beside_the_report(runs: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(runs / "group" / "second", place)
    for name in ("spectrum-G", "spectrum-E"):
        shutil.rmtree(place / "stages" / name)
    write_report(place)
    assert {path.name for path in (place / "figures").iterdir()} == {
        figures.DRAWN,
        *(f"{name}.{kind}" for name in ("spectra", "spectrum-H") for kind in ("svg", "pdf")),
    }
    assert not list(place.rglob("*.part"))
    assert "eigenvalue" in (place / "figures" / "spectra.svg").read_text("utf-8")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is drawn; the figures themselves are empty, which is quick."""
    names: list[str] = []

    def empty(picture: Picture) -> object:
        names.append(picture.name)
        figure, _ = style.panels(width=0.5, height=0.5)
        figure.clear()
        return figure

    monkeypatch.setattr(figures, "draw", empty)
    return names


@pytest.fixture
def second(runs: Path, tmp_path: Path) -> RunDirectory:
    shutil.copytree(runs / "group" / "second", tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def test_the_same_numbers_are_drawn_once(second: RunDirectory, drawn: list[str]) -> None:
    folder = second.path / "figures"
    write_figures(second)
    everything = ["spectrum-H", "spectrum-G", "spectrum-E", "spectra"]
    assert drawn == everything
    write_figures(second)
    assert drawn == everything
    (folder / "spectrum-G.pdf").unlink()
    write_figures(second)
    assert drawn == [*everything, "spectrum-G"]
    (folder / figures.DRAWN).write_text("{")  # damaged: it is not believed
    write_figures(second)
    assert drawn == [*everything, "spectrum-G", *everything]


def test_other_numbers_or_other_code_draw_anew(
    second: RunDirectory, drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_figures(second)
    drawn.clear()

    def moved(stage: Stage[Spectrum]) -> Stage[Spectrum]:
        measure = stage.result.measure
        wider = replace(measure, nodes=1.1 * measure.nodes)
        return replace(stage, result=replace(stage.result, measure=wider))

    rewritten(second.path, "spectrum-H", moved)
    write_figures(second)
    assert drawn == ["spectrum-H", "spectra"]
    drawn.clear()
    monkeypatch.setattr(figures, "_code", lambda: b"another version")
    write_figures(second)
    assert len(drawn) == 4


def test_what_the_run_has_no_more_is_taken_away(second: RunDirectory, drawn: list[str]) -> None:
    folder = second.path / "figures"
    write_figures(second)
    (folder / "mine.svg").write_text("not drawn here")
    shutil.rmtree(second.folder("spectrum-E"))
    write_figures(second)
    left = {path.name for path in folder.glob("*.svg")}
    assert left == {"mine.svg", "spectra.svg", "spectrum-H.svg", "spectrum-G.svg"}


def test_a_note_cannot_remove_files_elsewhere(second: RunDirectory, drawn: list[str]) -> None:
    outside = second.path.parent / "outside.svg"
    outside.write_text("mine")
    folder = io.make_folder(second.path / "figures")
    io.write_json(folder / figures.DRAWN, {"../../outside": "x", "..": "y"})
    write_figures(second)
    assert outside.read_text() == "mine"


# What they show -------------------------------------------------------------------------------


def test_all_eigenvalues_fill_the_area_of_a_density(first: RunDirectory) -> None:
    """Bars that leave the zeros out would stand several times as high."""
    found = first.result("spectrum-G", Spectrum)
    assert found.exact is not None
    found = replace(found, exact=replace(found.exact, zeros=found.measure.dimension))
    found = replace(found, measure=replace(found.measure, dimension=found.exact.dimension))
    panel = pictures.spectra("x", {"G": found}).panels[0]
    assert panel.alternate is not None
    for view, scale in (
        (panel, torch.tensor),
        (panel.alternate, lambda x: torch.tensor(x).log10()),
    ):
        bars = next(curve for curve in view.curves if curve.kind == "filled")
        widths = scale(bars.x).double().diff()
        area = float((widths * torch.tensor(bars.y[:-1]).double()).sum())
        assert area == pytest.approx(1.0, rel=1e-3)
        assert "eigenvalues" in bars.label


def test_spectra_have_bands_above_the_foot_and_every_curve_a_label(first: RunDirectory) -> None:
    for picture in figures_of(first):
        for panel in picture.panels:
            assert panel.xlabel
            assert panel.ylabel
            assert all(curve.label for curve in panel.curves)
            for curve in panel.curves:
                if panel.yscale == "log":
                    assert panel.ylim is None or min(curve.y) >= 0
                    assert panel.ylim is not None or min(curve.y) > 0
                    assert curve.low is None or min(curve.low) > 0


@pytest.mark.parametrize(
    ("values", "scale"),
    [([0.5, 30.0], "log"), ([2.0, 30.0], "linear"), ([1.1, 9.0], "linear"), ([], "linear")],
)
def test_a_logarithmic_axis_has_two_powers_of_ten_or_is_none(values, scale: str) -> None:
    assert structure.scaling(values) == scale


def test_a_layer(first: RunDirectory) -> None:
    found = first.result("layer-fc1", Finding[LayerComparison]).value
    assert found is not None
    panels = pictures.layer("layer-fc1", found).panels
    assert labeled(panels[0])["true Hessian"].y == close(found.true)
    assert labeled(panels[0])["Kronecker product"].y == close(found.approximate)
    assert panels[1].image is not None
    assert panels[1].image.values[0] == close(found.correspondences["true input"][0])
    assert panels[1].xlabel == "true eigenvector, 8 of 512"
    assert panels[1].ylabel == "eigenvector of E[xxᵀ], 40 of 64"
    assert labeled(panels[3])["overlap of the first k"].y == close(found.overlap)


def test_classes(first: RunDirectory) -> None:
    found = first.result("classes", Finding[ClassFindings]).value
    assert found is not None
    whole, knockouts = pictures.attribution("classes", found).panels
    points = labeled(whole)
    drawn = sum(len(curve.x) for name, curve in points.items() if "edge" not in name)
    values = found.attribution.values[:150]
    assert drawn == int((values > 1e-10 * values[0]).sum())
    assert points["edge of the bulk"].y[0] == pytest.approx(found.attribution.edge, rel=1e-5)
    curves = labeled(knockouts)
    parts = ("class", "cross", "within")
    assert list(curves) == ["G", *(f"without the {part} part" for part in parts)]
    assert curves["G"].width > 2  # it lies under curves that may cover it


def test_a_layer_by_class(first: RunDirectory) -> None:
    found = first.result("classes-fc2", Finding[ClassLayerFindings]).value
    assert found is not None
    assert found.factors is not None
    first_panel, *moments = pictures.class_layer("classes-fc2", found).panels
    names = [curve.label for curve in first_panel.curves]
    assert [name.split(" ")[0] for name in names] == ["G", "KFAC", "CFAC"]
    assert names[0] == f"G ({100 * found.factors.below['G']:.0f} % below)"
    for panel, name in zip(moments, ("features", "errors"), strict=True):
        total = found.moments[name].total
        kept = total[total > 1e-10 * total[0]]
        assert labeled(panel)["all"].y == close(kept)
