"""The runs below a folder: analyses and trainings, each by its path relative to that folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from curvescope import io
from curvescope._numbers import percent, short
from curvescope.errors import CurvescopeError
from curvescope.experiments.best_values import best_values
from curvescope.experiments.configuration import Analysis
from curvescope.experiments.quantities import LARGEST, TRACE
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.store import RunDirectory
from curvescope.training.folder import TrainingFolder
from curvescope.training.records import Training

_DEEPEST = 6
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class ListedRun:
    """One row of the list of runs."""

    id: str  # the path below the folder, with slashes
    path: Path
    kind: str  # "analysis" or "training"
    name: str
    data: str
    seed: str
    state: str
    numbers: Mapping[str, str]
    whole: bool = True  # whether it can be read: a damaged run is listed, but has no page

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
    runs = []
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
