"""The runs below a folder: analyses and trainings, each by its path relative to that folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.experiments.checks import Number
from curvescope.experiments.store import KIND, RunDirectory

_DEEPEST = 6


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

    @property
    def words(self) -> str:
        """What a filter looks into."""
        shown = (self.id, self.kind, self.name, self.data, f"seed {self.seed}", self.state)
        return " ".join(shown).lower()


def find_runs(root: Path) -> list[Found]:
    """All runs below ``root``, by path; nothing outside of it is read.

    Links to folders are not followed, and a run with a link that leads out of ``root`` is left out.

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
        if "config.json" in files and contained(root, place):
            try:
                run = _describe(root, place)
            except (CurvescopeError, KeyError, TypeError, ValueError, IndexError, AttributeError):
                continue  # someone else's config.json, or a damaged one
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


def _describe(root: Path, place: Path) -> Found | None:
    config = io.read_json(place / "config.json")
    name = place.relative_to(root).as_posix()
    if isinstance(config, dict) and config.get("kind") == KIND:
        return _analysis(name, RunDirectory(place))
    if isinstance(config, dict) and "recipe" in config:
        return _training(name, place, config)
    return None


def _analysis(name: str, run: RunDirectory) -> Found:
    numbers: dict[str, str] = {}
    if run.has("overview"):
        fits = run.record("overview")["values"]["fits"]
        numbers |= _fits(fits)
    if run.has("spectrum-H"):
        values = run.record("spectrum-H")["values"]
        numbers["λ₁(H)"] = f"{max(values['outliers']):.4g}"
        numbers["tr H"] = str(Number(**values["trace"]))
    state = "finished" if run.complete else f"{len(run.stages)} of {len(run.expected)} stages"
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


def _training(name: str, place: Path, config: dict[str, Any]) -> Found:
    numbers: dict[str, str] = {}
    state = "unfinished"
    if (place / "result.json").is_file():
        result = io.read_json(place / "result.json")
        state = "finished" if result["diverged"] is None else "diverged"
        numbers |= _fits(
            {
                split: {"loss": fit["loss"], "error": 1 - fit["accuracy"]}
                for split in ("train", "test")
                if (fit := result[split])
            }
        )
    network = config.get("network") or {}
    return Found(
        name,
        place,
        "training",
        str(network.get("name", "own model")),
        str(config["data"]["name"]),
        str(config["recipe"]["seed"]),
        state,
        numbers,
    )


def _fits(fits: Mapping[str, Any]) -> dict[str, str]:
    numbers = {}
    for split, fit in fits.items():
        numbers[f"{split} loss"] = f"{fit['loss']:.4g}"
        if fit["error"] is not None:
            numbers[f"{split} error"] = f"{100 * fit['error']:.2f} %"
    return numbers
