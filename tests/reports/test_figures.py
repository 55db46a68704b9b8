"""The figures show the numbers that were saved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from curvescope.experiments.stages import class_layers, class_structure, layers
from curvescope.experiments.store import RunDirectory
from curvescope.plots import classes, kronecker
from curvescope.reports.figures import _figures
from curvescope.reports.page import write_report


def labelled(axes) -> dict:
    return {line.get_label(): line for line in axes.lines}


def test_every_stage_with_a_picture_has_one(first: RunDirectory) -> None:
    names = [name for name, _ in _figures(first)]
    assert names == [
        *("spectrum-H", "spectrum-G", "spectrum-E", "layer-fc1", "layer-fc2"),
        *("classes", "classes-fc1", "classes-fc2", "spectra"),
    ]


def test_figures_are_written_beside_the_report(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "group" / "second", tmp_path / "run")
    write_report(tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("spectra", "spectrum-H", "spectrum-G", "spectrum-E")
        for kind in ("svg", "pdf")
    }
    assert not list((tmp_path / "run").rglob("*.part"))


def test_a_layer(first: RunDirectory) -> None:
    found = layers.restore(first.stage("layer-fc1"))
    assert found is not None
    figure = kronecker.layer(found)
    values, true_input = figure.axes[0], figure.axes[1]
    assert labelled(values)["true"].get_ydata() == pytest.approx(found.true.tolist())
    assert labelled(values)["Kronecker"].get_ydata() == pytest.approx(found.approximate.tolist())
    shown = true_input.images[0].get_array()
    assert shown.tolist() == pytest.approx(found.correspondences["true input"].numpy())
    assert labelled(figure.axes[3])["overlap at k"].get_ydata() == pytest.approx(
        found.overlap.tolist()
    )


def test_classes(first: RunDirectory) -> None:
    found = class_structure.restore(first.stage("classes"))
    assert found is not None
    figure = classes.attribution(found)
    points = labelled(figure.axes[0])
    drawn = sum(len(line.get_xdata()) for name, line in points.items() if "edge" not in name)
    assert drawn == min(150, len(found.attribution.values))
    assert points["edge of the bulk"].get_ydata()[0] == found.attribution.edge
    assert set(labelled(figure.axes[1])) == {
        "G",
        "without class",
        "without cross",
        "without within",
    }


def test_a_layer_by_class(first: RunDirectory) -> None:
    found = class_layers.restore(first.stage("classes-fc2"))
    assert found is not None
    figure = classes.class_layer(found)
    assert list(labelled(figure.axes[0])) == ["G", "KFAC", "CFAC"]
    for axes, name in zip(figure.axes[1:], ("features", "errors"), strict=True):
        total = found.moments[name].total
        kept = total[total > 1e-12 * total[0]]
        assert labelled(axes)["all"].get_ydata() == pytest.approx(kept.tolist())
