"""The comparison of two or more runs: spectra in one picture, numbers in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from curvescope import io
from curvescope.experiments.best_values import best_values
from curvescope.experiments.quantities import QUANTITIES
from curvescope.experiments.stages import spectra
from curvescope.experiments.store import RunDirectory
from curvescope.figures import stages as pictures
from curvescope.monitor import read_log
from curvescope.reports.blocks import Block, Chart, Section, Table
from curvescope.reports.configuration import differing
from curvescope.reports.monitoring import has_log, sections_of
from curvescope.reports.runs import ListedRun
from curvescope.reports.sections.overview import cell
from curvescope.reports.training import curves, weights_checksum
from curvescope.training.folder import TrainingFolder

_TELLING = ("recipe.", "network.", "penalty", "loss", "mode", "dtype", "data.samples")
"""The settings by which readers tell runs apart: beginnings of their names."""
_LONGEST = 24


def compare(runs: Sequence[ListedRun]) -> list[Section]:
    """The sections of a comparison: those whose stages all runs have finished."""
    configs = [_config(run) for run in runs]
    different = differing(configs)
    names = labels(runs, different)
    sections = [_numbers(runs, names), _settings(different, names)]
    built = (_measures(runs, names), _spectra(runs, names), _training(runs, names))
    shown = [section for section in built if section] + _monitors(runs, names)
    return sections[:1] + shown + sections[1:]


def _monitors(runs: Sequence[ListedRun], names: list[str]) -> list[Section]:
    """Curvature during the trainings that a monitor has watched, over each other."""
    watched = zip(runs, names, strict=True)
    logs = {name: read_log(run.path) for run, name in watched if has_log(run.path)}
    return sections_of(logs) if logs else []


def _config(run: ListedRun) -> Any:
    """The configuration of a run, as plain JSON."""
    if run.kind == "monitor":
        return {"monitor": dict(read_log(run.path).header.settings)}
    folder: Any = (RunDirectory if run.kind == "analysis" else TrainingFolder)(run.path)
    return io.encode(folder.config)[0]


def labels(runs: Sequence[ListedRun], different: dict[str, list[str]]) -> list[str]:
    """A short name for each run, and no two alike.

    It begins with the network's name. To runs whose names are still equal, what differs among them
    is added: data, then kind, seed, other settings, and the folder.

    Args:
        runs: The runs that are compared.
        different: Settings that differ, with a value for each run.
    """
    parts = [[run.name] for run in runs]
    attributes = [[run.data for run in runs], [run.kind for run in runs]]
    attributes.append([f"seed {run.seed}" for run in runs])
    for setting, values in different.items():
        if setting.startswith(_TELLING) and max(map(len, values)) <= _LONGEST:
            name = setting.rpartition(".")[2].replace("_", " ")
            attributes.append([f"{name} {value}" for value in values])
    attributes.append([run.id for run in runs])
    for values in attributes:
        for group in _alike(parts):
            if len({values[i] for i in group}) > 1:
                for i in group:
                    parts[i].append(values[i])
    return [", ".join(part) for part in parts]


def _alike(parts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Groups of two or more whose names are the same so far."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, part in enumerate(parts):
        groups.setdefault(tuple(part), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _numbers(runs: Sequence[ListedRun], names: list[str]) -> Section:
    keys = list(dict.fromkeys(key for run in runs for key in run.numbers))
    rows = [["folder", *(run.id for run in runs)], ["kind", *(run.kind for run in runs)]]
    rows += [["data", *(run.data for run in runs)], ["seed", *(run.seed for run in runs)]]
    rows += [[key, *(run.numbers.get(key, "–") for run in runs)] for key in keys]
    rows.append(["state", *(run.state for run in runs)])
    if any(run.kind == "training" for run in runs):
        rows.append(["final weights, SHA-256", *(_checksum(run) for run in runs)])
    table = Table("Numbers side by side", ["", *names], rows)
    return Section("numbers", "Numbers", blocks=[table])


def _checksum(run: ListedRun) -> str:
    """The first 16 digits of the checksum of the final weights."""
    checksum = weights_checksum(run.path) if run.kind == "training" else None
    return "–" if checksum is None else f"{checksum[:16]}…"


def _settings(different: dict[str, list[str]], names: list[str]) -> Section:
    """The settings that differ between the runs."""
    rows = [[setting, *values] for setting, values in different.items()]
    rows = rows or [["", *("all settings are the same" for _ in names)]]
    table = Table("Settings that differ", ["setting", *names], rows, folded=True)
    return Section("settings", "Settings", blocks=[table])


def _measures(runs: Sequence[ListedRun], names: list[str]) -> Section | None:
    """The best values, one table for each matrix."""
    tables = {
        name: best_values(RunDirectory(run.path))
        for run, name in zip(runs, names, strict=True)
        if run.kind == "analysis"
    }
    blocks: list[Block] = []
    for matrix in spectra.MATRICES:
        columns = {name: table[matrix] for name, table in tables.items() if matrix in table}
        if columns:
            rows = [
                [quantity, *(cell(quantity, row.get(quantity)) for row in columns.values())]
                for quantity in QUANTITIES
            ]
            blocks.append(Table(f"Measures of {matrix}", ["", *columns], rows, heading=matrix))
    return Section("measures", "Sharpness", blocks=blocks) if blocks else None


def _spectra(runs: Sequence[ListedRun], names: list[str]) -> Section | None:
    blocks: list[Block] = []
    for matrix in spectra.MATRICES:
        by_run = {}
        for run, name in zip(runs, names, strict=True):
            if run.kind == "analysis" and matrix in (
                there := spectra.spectra_of(RunDirectory(run.path))
            ):
                by_run[name] = there[matrix]
        if by_run:
            title = f"Spectral density of {matrix}"
            panel = pictures.spectra_panel(by_run, title=title, by_matrix=False)
            blocks.append(Chart(f"spectrum-{matrix}", title, panel))
    return Section("spectra", "Spectra", blocks=blocks) if blocks else None


def _training(runs: Sequence[ListedRun], names: list[str]) -> Section | None:
    chosen = {
        name: TrainingFolder(run.path).epochs()
        for run, name in zip(runs, names, strict=True)
        if run.kind == "training"
    }
    pictures: list[Block] = list(curves(chosen))
    return Section("training", "Training", blocks=pictures) if pictures else None
