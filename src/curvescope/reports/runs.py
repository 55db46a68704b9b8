"""The runs below a folder: analyses and trainings, each by its path relative to that folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.experiments.known import known
from curvescope.experiments.lock import busy
from curvescope.experiments.quantities import LARGEST, TRACE
from curvescope.experiments.store import KIND, RunDirectory
from curvescope.reports.training import network_of, result_of, training_config

_DEEPEST = 6
_DAMAGE = (CurvescopeError, KeyError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True)
class Found:
    """One run, with the few numbers that a list shows."""

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
        """What a filter looks into."""
        shown = (self.id, self.kind, self.name, self.data, f"seed {self.seed}", self.state)
        return " ".join(shown).lower()


def find_runs(root: Path) -> list[Found]:
    """All runs below ``root``, by path; nothing outside of it is read.

    Links to folders are not followed, and nothing is read of a run with a link that leads out of
    ``root``: it is listed, and says so, like one that is damaged or of a later version. What is no
    run is left out.

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
        msg = f"view {str(root)!r}: is not a folder that can be read ({error.strerror})"
        raise CurvescopeError(msg) from None
    found = []
    for folder, below, files in os.walk(root, followlinks=False):
        place = Path(folder)
        depth = len(place.relative_to(root).parts)
        below[:] = sorted(
            name
            for name in below
            if not name.startswith(".")
            and name not in ("stages", "weights", "figures")
            and depth < _DEEPEST
        )
        if "config.json" in files:
            run = _describe(root, place) if contained(root, place) else _leading_out(root, place)
            if run is not None:
                found.append(run)
    return sorted(found, key=lambda run: run.id)


def contained(root: Path, folder: Path) -> bool:
    """Whether everything in a run's folder, links included, lies below ``root``."""
    for place, below, files in os.walk(folder, followlinks=False):
        for name in (*below, *files):
            entry = Path(place) / name
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                return False
    return folder.resolve().is_relative_to(root)


def _leading_out(root: Path, place: Path) -> Found | None:
    """A run that is not looked into; None for what has neither the folders of one."""
    kinds = {"stages": "analysis", "weights": "training"}
    kind = next((kinds[name] for name in kinds if os.path.lexists(place / name)), None)
    if kind is None:
        return None
    state = "not shown: a link in it leads out of the folder of the runs"
    name = place.relative_to(root).as_posix()
    return Found(name, place, kind, "–", "–", "–", state, {}, whole=False)


def _describe(root: Path, place: Path) -> Found | None:
    """One run; None for someone else's ``config.json``."""
    name = place.relative_to(root).as_posix()
    try:
        config = io.read_json(place / "config.json")
    except CurvescopeError as error:
        # Not JSON: a run's if the rest of the folder is, else someone else's.
        ours = (place / "stages").is_dir() or (place / "weights").is_dir()
        return _damaged(name, place, {}, error) if ours else None
    if not isinstance(config, dict):
        return None
    try:
        if config.get("kind") == KIND:
            return _analysis(name, RunDirectory(place))
        if "recipe" in config and "network" in config:
            return _training(name, place)
    except _DAMAGE as error:
        return _damaged(name, place, config, error)
    return None


def _damaged(name: str, place: Path, config: Mapping[str, Any], error: Exception) -> Found:
    """What can be said of a run that cannot be read."""
    kind = "training" if "recipe" in config or (place / "weights").is_dir() else "analysis"
    format = config.get("format")
    if kind == "analysis" and isinstance(format, int) and format > 1:
        state = f"made by a later version (format {format}): update curvescope"
    else:
        state = "damaged: a file of it is missing, or not what it should be"
        if isinstance(error, CurvescopeError):  # its beginning, without the folder, says enough
            words = str(error).replace(f"{place}{os.sep}", "").replace(str(place), name)
            state = f"damaged: {re.split(r' [(]|; ', words)[0]}"
    return Found(name, place, kind, "–", "–", "–", state, {}, whole=False)


def _analysis(name: str, run: RunDirectory) -> Found:
    numbers: dict[str, str] = {}
    if run.has("overview"):
        numbers |= _fits(run.record("overview")["values"]["fits"])
    row = known(run).get("H", {})
    for label, quantity in (("λ_max(H)", LARGEST), ("tr H", TRACE)):
        if quantity in row:
            numbers[label] = str(row[quantity])
    state = "finished" if run.complete else f"{len(run.stages)} of {len(run.expected)} stages"
    if not run.complete:
        state += ", running" if busy(run.path) else ", stopped"
    if not all(check.passed for _, check in run.checks()):
        state += ", a check disagrees"
    config = run.config
    return Found(
        name,
        run.path,
        "analysis",
        str(config["model"]["name"]),
        str(config["data"]["name"]),
        str(config["seed"]),
        state,
        numbers,
    )


def _training(name: str, place: Path) -> Found:
    numbers: dict[str, str] = {}
    config, result = training_config(place), result_of(place)
    state = "running" if busy(place) else "stopped"
    if result is not None:
        state = "finished" if result["diverged"] is None else "diverged"
        numbers |= _fits(
            {
                split: {"loss": fit["loss"], "error": _error(fit)}
                for split in ("train", "test")
                if (fit := result[split])
            }
        )
    return Found(
        name,
        place,
        "training",
        network_of(config),
        str(config["data"].get("name") or "own data"),
        str(config["recipe"]["seed"]),
        state,
        numbers,
    )


def _error(fit: Mapping[str, Any]) -> float | None:
    accuracy = fit.get("accuracy")
    return None if accuracy is None else 1 - accuracy


def _fits(fits: Mapping[str, Any]) -> dict[str, str]:
    numbers = {}
    for split, fit in fits.items():
        numbers[f"{split} loss"] = f"{fit['loss']:.4g}"
        if fit["error"] is not None:
            numbers[f"{split} error"] = f"{100 * fit['error']:.2f} %"
    return numbers
