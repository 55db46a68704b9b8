"""Two or more runs beside each other: spectra over each other, tables side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from curvescope import io
from curvescope.experiments.stages import spectra
from curvescope.experiments.store import RunDirectory
from curvescope.reports import charts
from curvescope.reports.blocks import Block, Chart, Section, Table
from curvescope.reports.runs import Found


def compare(runs: Sequence[Found]) -> list[Section]:
    """The sections of a comparison, as far as the runs have them."""
    labels = _labels(runs)
    sections = [_numbers(runs, labels), _settings(runs, labels)]
    sections += [
        section for section in (_spectra(runs, labels), _training(runs, labels)) if section
    ]
    return sections


def _labels(runs: Sequence[Found]) -> list[str]:
    """A short name for each run; its path where two have the same."""
    names = [f"{run.name}, seed {run.seed}" for run in runs]
    return [
        run.id if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)
    ]


def _numbers(runs: Sequence[Found], labels: list[str]) -> Section:
    keys = list(dict.fromkeys(key for run in runs for key in run.numbers))
    rows = [["folder", *(run.id for run in runs)], ["kind", *(run.kind for run in runs)]]
    rows += [[key, *(run.numbers.get(key, "–") for run in runs)] for key in keys]
    rows.append(["state", *(run.state for run in runs)])
    table = Table("Numbers side by side", ["", *labels], rows)
    return Section("numbers", "Numbers", blocks=[table])


def _settings(runs: Sequence[Found], labels: list[str]) -> Section:
    """Only what differs: the rest is the same for all."""
    flat = [dict(_flatten(io.read_json(run.path / "config.json"))) for run in runs]
    keys = dict.fromkeys(key for config in flat for key in config)
    rows = []
    for key in keys:
        values = [config.get(key, "–") for config in flat]
        if len(set(values)) > 1:
            rows.append([key, *values])
    rows = rows or [["", *("all settings are the same" for _ in runs)]]
    table = Table("Settings that differ", ["setting", *labels], rows, folded=True)
    return Section("settings", "Settings", blocks=[table])


def _flatten(config: Any, name: str = "") -> list[tuple[str, str]]:
    if not isinstance(config, dict):
        return [(name, str(config))]
    if name.endswith(("parameters", "architecture")):
        return [(name, f"{len(config)} tensors")]
    return [
        entry
        for key, value in config.items()
        for entry in _flatten(value, f"{name}.{key}".lstrip("."))
    ]


def _spectra(runs: Sequence[Found], labels: list[str]) -> Section | None:
    blocks: list[Block] = []
    for matrix in spectra.MATRICES:
        found = {}
        for run, label in zip(runs, labels, strict=True):
            if run.kind == "analysis" and (directory := RunDirectory(run.path)).has(
                f"spectrum-{matrix}"
            ):
                found[label] = spectra.restore(directory.stage(f"spectrum-{matrix}"))
        if found:
            colours = {
                label: charts.COLOURS[i % len(charts.COLOURS)] for i, label in enumerate(labels)
            }
            title = f"Spectral density of {matrix}"
            spec = charts.density_chart(found, title=title, colours=colours)
            for series in spec["series"]:
                series["hidden"] = series["kind"] == "histogram"
            blocks.append(Chart(f"spectrum-{matrix}", title, spec))
    return Section("spectra", "Spectra", blocks=blocks) if blocks else None


def _training(runs: Sequence[Found], labels: list[str]) -> Section | None:
    blocks: list[Block] = []
    curves: tuple[tuple[str, str, Callable[[dict[str, Any]], Any]], ...] = (
        ("loss", "mean training loss of each epoch", lambda epoch: epoch["loss"]),
        ("accuracy", "test accuracy after each epoch", lambda epoch: epoch["test_accuracy"]),
    )
    for name, caption, pick in curves:
        lines = {}
        for run, label in zip(runs, labels, strict=True):
            log = run.path / "metrics.jsonl"
            if run.kind == "training" and log.is_file():
                epochs = io.read_json_lines(log)
                chosen = [(e["epoch"], pick(e)) for e in epochs if pick(e) is not None]
                if chosen:
                    x, y = zip(*chosen, strict=True)
                    lines[label] = {"x": list(x), "y": list(y), "marks": len(x) < 40}
        if lines:
            spec = charts.line_chart(
                lines, title=caption, x="epoch", y=name, toggles=True, zero=name == "loss"
            )
            blocks.append(Chart(f"training-{name}", caption.capitalize(), spec))
    return Section("training", "Training", blocks=blocks) if blocks else None
