"""The runs below a folder, each by its path relative to that folder.

Analyses, trainings, logs of monitors, certificates, outcomes of studies, and what a sweep has not
begun yet.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from curvescope import io
from curvescope._numbers import percent, short
from curvescope.certificates import Certificate
from curvescope.errors import CurvescopeError
from curvescope.experiments.best_values import best_values
from curvescope.experiments.configuration import Analysis
from curvescope.experiments.quantities import LARGEST, TRACE
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.store import RunDirectory
from curvescope.monitor import read_log
from curvescope.monitor.log import LOG
from curvescope.reports.monitoring import growing, newest
from curvescope.studies.outcome import FILE as OUTCOME
from curvescope.studies.outcome import load_file
from curvescope.sweeps.queue import FOLDER, is_sweep, tasks_in
from curvescope.training.folder import TrainingFolder
from curvescope.training.records import Training

_DEEPEST = 6
_FILES = {"certificate.json": "certificate", OUTCOME: "study"}
KINDS = {
    "train": "training",
    "analyze": "analysis",
    "certify": "certificate",
    "study": "study",
}
"""The kinds of runs in a sweep's plan, and what they are listed as."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class ListedRun:
    """One row of the list of runs."""

    id: str  # the path below the folder, with slashes
    path: Path
    kind: str  # "analysis", "training", "monitor", "certificate" or "study"
    name: str
    data: str
    seed: str
    state: str
    numbers: Mapping[str, str]
    whole: bool = True  # whether it can be read: a damaged run is listed, but has no page
    begun: bool = True  # False for a run of a sweep that has no folder yet

    @property
    def moving(self) -> bool:
        """Whether somebody works on it or will, so that another look shows more."""
        return self.state in ("running", "waiting") or self.state.endswith(", running")

    @property
    def page(self) -> bool:
        """Whether the viewer has a page for it."""
        return self.whole and self.begun and self.kind in ("analysis", "training", "monitor")

    @property
    def words(self) -> str:
        """The text that the filter of the list searches."""
        texts = (self.id, self.kind, self.name, self.data, f"seed {self.seed}", self.state)
        return " ".join(texts).lower()


def find_runs(root: Path) -> list[ListedRun]:
    """All runs below ``root``, by path; nothing outside of it is read.

    Links to folders are not followed. A run with a link that leads out of ``root`` is not read; it
    is listed with a remark, like one that is damaged or of a later version. Other folders are left
    out.

    Raises:
        CurvescopeError: If ``root`` is no folder that can be read.

    >>> import tempfile
    >>> find_runs(Path(tempfile.mkdtemp()))
    []
    """
    root = root.resolve()
    try:
        os.listdir(root)
    except OSError as error:
        rule = f"is not a folder that can be read ({error.strerror})"
        raise CurvescopeError(f"view {str(root)!r}", rule) from None
    runs, sweeps = [], []
    for folder, below, files in os.walk(root, onerror=_exhausted, followlinks=False):
        place = Path(folder)
        depth = len(place.relative_to(root).parts)
        there = {*files, *below}
        below[:] = sorted(
            name
            for name in below
            if not name.startswith(".")
            and name not in ("stages", "weights", "figures")
            and depth < _DEEPEST
        )
        if "config.json" in there:
            run = _describe(root, place) if contained(root, place) else _leading_out(root, place)
            if run is not None:
                runs.append(run)
        elif LOG in files:
            runs.append(_monitor(root, place))
        runs += [_other(root, place, name, kind) for name, kind in _FILES.items() if name in files]
        if FOLDER in below and is_sweep(place):
            below.remove(FOLDER)
            sweeps.append(place)
    begun = {run.path for run in runs}
    for place in sweeps:
        runs += _not_begun(root, place, begun)
    return sorted(runs, key=lambda run: run.id)


def _exhausted(error: OSError) -> None:
    """A folder that cannot be read is left out; without descriptors none could be."""
    if error.errno in _EXHAUSTED:
        raise error


def contained(root: Path, folder: Path) -> bool:
    """Whether everything in a run's folder, links included, lies below ``root``."""
    for place, below, files in os.walk(folder, followlinks=False):
        for name in (*below, *files):
            entry = Path(place) / name
            if entry.is_symlink() and not _resolved(entry).is_relative_to(root):
                return False
    return _resolved(folder).is_relative_to(root)


def _resolved(place: Path) -> Path:
    """Where a link leads; one that leads back to itself stays where it is."""
    return Path(os.path.realpath(place))


def _other(root: Path, place: Path, file: str, kind: str) -> ListedRun:
    """The row of a certificate or of a study's outcome."""
    beside = (place / "config.json").exists()
    name = (place / file if beside else place).relative_to(root).as_posix()
    whole = contained(root, place)
    run = ListedRun(name, place, kind, "–", "–", "–", "finished", {}, whole=whole)
    if not whole:
        return replace(run, state="not shown: a link in it leads out of the folder of the runs")
    try:
        if kind == "study":
            outcome = load_file(place / file)
            return replace(run, name=outcome.study, data=outcome.scale, seed=str(outcome.seed))
        certificate = Certificate.load(place / file)
        numbers = {"bound": short(certificate.bound)}
        return replace(run, data=certificate.source.data, numbers=numbers)
    except Exception as error:
        return _damaged(name, place, kind, error)


def _monitor(root: Path, place: Path) -> ListedRun:
    """The row of a monitor's log that lies in no run of ours."""
    name = place.relative_to(root).as_posix()
    run = ListedRun(name, place, "monitor", "–", "–", "–", "stopped", {})
    if not contained(root, place):
        state = "not shown: a link in it leads out of the folder of the runs"
        return replace(run, state=state, whole=False)
    try:
        network = str(read_log(place).header.settings.get("model", "–"))
    except Exception as error:
        return _damaged(name, place, "monitor", error)
    state = "running" if growing(place) else "stopped"
    return replace(run, name=network, state=state, numbers=newest(place))


def _not_begun(root: Path, place: Path, there: Collection[Path]) -> list[ListedRun]:
    """The rows of a sweep's runs that have no run directory, with what became of them."""
    rows = []
    try:
        tasks = tasks_in(place)
    except CurvescopeError as error:
        name = place.relative_to(root).as_posix()
        return [_damaged(name, place, "sweep", error)]
    for name, (task, state, result) in tasks.items():
        if place / name in there:
            continue
        problem = f": {result.problem}" if result is not None and result.problem else ""
        given = {key: str(task.settings.get(key, "–")) for key in ("network", "data", "seed")}
        folder = place / name
        rows.append(
            ListedRun(
                folder.relative_to(root).as_posix(), folder, KINDS.get(task.kind, task.kind),
                given["network"], given["data"], given["seed"], f"{state}{problem}", {},
                whole=state not in ("failed", "blocked"), begun=False,
            )
        )  # fmt: skip
    return rows


def _leading_out(root: Path, place: Path) -> ListedRun | None:
    """The row of a run that is not read; None for a folder that is none."""
    kinds = {"stages": "analysis", "weights": "training"}
    kind = next((kinds[name] for name in kinds if os.path.lexists(place / name)), None)
    if kind is None:
        return None
    state = "not shown: a link in it leads out of the folder of the runs"
    name = place.relative_to(root).as_posix()
    return ListedRun(name, place, kind, "–", "–", "–", state, {}, whole=False)


def _describe(root: Path, place: Path) -> ListedRun | None:
    """The row of a run, also of a damaged one; None for a ``config.json`` of another program."""
    name = place.relative_to(root).as_posix()
    kind = ""
    try:
        kind = kind_of(place)
        if kind == "analysis":
            return _analysis(name, RunDirectory(place))
        return _training(name, place) if kind else None
    except Exception as error:  # whatever is wrong with it, the other runs are shown
        if not kind and not _looks_like_ours(place):
            return None
        return _damaged(name, place, kind, error)


def kind_of(place: Path) -> str:
    """``"analysis"``, ``"training"``, or empty for a ``config.json`` of another program.

    Raises:
        CurvescopeError: If it cannot be read.
    """
    config = io.read_json(place / "config.json")
    named = {Analysis.__name__: "analysis", Training.__name__: "training"}
    if (kind := named.get(io.header(config) or "")) is not None:
        return kind
    if isinstance(config, dict):
        if config.get("kind") == "analysis":  # of an earlier version, refused with its reason
            return "analysis"
        if {"recipe", "network"} <= config.keys():
            return "training"
    if _looks_like_ours(place):
        raise CurvescopeError("config.json", "holds neither an analysis nor a training")
    return ""


def _looks_like_ours(place: Path) -> bool:
    return (place / "stages").is_dir() or (place / "weights").is_dir()


def _damaged(name: str, place: Path, kind: str, error: Exception) -> ListedRun:
    """The row of a run that cannot be read, with the reason."""
    kind = kind or ("training" if (place / "weights").is_dir() else "analysis")
    state = "damaged: a file of it is missing, or not what it should be"
    if isinstance(error, CurvescopeError):  # its beginning, without the folder, says enough
        where = error.where.replace(f"{place}{os.sep}", "").replace(str(place), name)
        state = f"damaged: {where}: {error.rule.partition(' (')[0]}"
        if error.rule.startswith("was written by "):
            state = f"{where}: {error.rule}"
    return ListedRun(name, place, kind, "–", "–", "–", state, {}, whole=False)


def _analysis(name: str, run: RunDirectory) -> ListedRun:
    numbers: dict[str, str] = {}
    if run.has("overview"):
        for split, fit in run.result("overview", Overview).fits.items():
            numbers |= _fit(split, fit.loss, fit.error)
    row = best_values(run).get("H", {})
    for label, quantity in (("λ_max(H)", LARGEST), ("tr H", TRACE)):
        if quantity in row:
            numbers[label] = str(row[quantity])
    state = "finished" if run.complete else f"{len(run.stages)} of {len(run.expected)} stages"
    if not run.complete:
        state += ", running" if io.busy(run.path) else ", stopped"
    if not all(check.passed for _, check in run.checks()):
        state += ", a check disagrees"
    config = run.config
    return ListedRun(
        name,
        run.path,
        "analysis",
        config.model.name,
        config.data.name,
        str(config.seed),
        state,
        numbers,
    )


def _training(name: str, place: Path) -> ListedRun:
    numbers: dict[str, str] = {}
    run = TrainingFolder(place)
    config, result = run.config, run.result()
    state = "running" if io.busy(place) else "stopped"
    if result is not None:
        state = "finished" if result.diverged is None else "diverged"
        for split, fit in (("train", result.train), ("test", result.test)):
            if fit is not None:
                numbers |= _fit(split, fit.loss, 1 - fit.accuracy)
    numbers |= newest(place)
    return ListedRun(
        name,
        place,
        "training",
        config.name,
        str(config.data.name or "own data"),
        str(config.recipe.seed),
        state,
        numbers,
    )


def _fit(split: str, loss: float, error: float | None) -> dict[str, str]:
    numbers = {f"{split} loss": short(loss)}
    if error is not None and isfinite(error):  # a loss without right answers has none
        numbers[f"{split} error"] = percent(error)
    return numbers


def how_far(place: Path) -> str:
    """How far a run has come, in words; nothing where that cannot be said.

    >>> how_far(Path("there is none"))
    ''
    """
    try:
        kind = kind_of(place) if (place / "config.json").exists() else ""
        if kind == "analysis":
            run = RunDirectory(place)
            return f"{len(run.stages)} of {len(run.expected)} stages"
        if kind == "training":
            lines = (place / "metrics.jsonl").read_bytes().count(b"\n")
            return f"epoch {lines} of {TrainingFolder(place).config.recipe.epochs}"
    except (OSError, CurvescopeError):  # it is being written
        pass
    return ""
