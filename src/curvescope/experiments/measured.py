"""The sharpness of a run: read from its analysis or from ``sharpness.json``, else measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curvescope import io
from curvescope._state import evaluated
from curvescope.errors import CurvescopeError
from curvescope.experiments import load, trained
from curvescope.experiments.best_values import best_values, with_best_values
from curvescope.experiments.configuration import Analysis
from curvescope.experiments.stages import sharpness as stage
from curvescope.experiments.stages.context import derived
from curvescope.experiments.store import RunDirectory
from curvescope.flatness.network_scores import scores
from curvescope.flatness.report import SharpnessReport, has_batch_statistics, sharpness
from curvescope.identity import digest, file_digest
from curvescope.problem import Problem
from curvescope.training.folder import TrainingFolder
from curvescope.training.records import Training

FILE = "sharpness.json"
_BATCH = 500


@dataclass(frozen=True)
class Measuring:
    """How the sharpness is measured; it decides the numbers.

    Args:
        samples: Number of random training samples for the curvature; all by default.
        seed: Decides the samples and every probe.
        tol: Relative residual of the eigenvalues.
        probes: Random vectors for the sums.
    """

    samples: int | None = None
    seed: int = 0
    tol: float = 1e-3
    probes: int = 16


@dataclass(frozen=True)
class Measured:
    """The contents of ``sharpness.json``: a report for each mode of the batch norms."""

    training: str  # the digest of its configuration and its final weights
    measuring: Measuring
    reports: tuple[SharpnessReport, ...]


@dataclass(frozen=True)
class MeasuredRun:
    """A run, how it was trained where that is recorded, and its reports by batch-norm mode.

    Losses and errors of every report are those of the network in eval mode, in which it predicts.
    """

    name: str
    path: Path
    training: Mapping[str, Any]
    reports: Mapping[str, SharpnessReport]
    source: str  # "analysis", "stored" or "measured"
    fitted: int  # samples behind the training loss and error


def measured_run(
    folder: Path,
    measuring: Measuring,
    *,
    root: Path | None = None,
    data_seed: int | None = None,
    device: str = "auto",
    again: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> MeasuredRun:
    """Read or measure the sharpness of a training or of an analysis.

    The report of a training is that of its analysis, else that of ``sharpness.json`` if it was
    measured in the same way; else it is measured and written there.

    Args:
        folder: Of ``curvescope train`` or ``curvescope analyze``.
        measuring: How to measure.
        root: Where the data files lie.
        data_seed: The seed of random labels or sub-samples, as in training.
        device: Where to measure.
        again: Measure a training again, even if there is a report.
        tell: Called with a few words before long work.

    Raises:
        CurvescopeError: If the folder is neither, or has nothing to compare yet.
    """
    config = _config(folder)
    if config is None:
        return _of_analysis(folder, folder)
    if not again and _has_stage(folder / "analysis"):
        return _of_analysis(folder / "analysis", folder)
    trained.finished_run(folder)
    if config.loss is not None:
        raise CurvescopeError(
            repr(str(folder)),
            "was trained with a loss of the user's code, which no name stands for",
            remedy="analyze it with curvescope analyze --loss CODE first",
        )
    identity = digest(
        file_digest(folder / "config.json"),
        file_digest(io.check_tensors(folder / "weights" / "final.safetensors")),
    )
    reports = None if again else _stored(folder, identity, measuring)
    source = "stored"
    if reports is None:
        splits = trained.load_run_data(folder, root=root, seed=data_seed)
        with io.held(folder):
            reports = _measure(folder, config, splits, measuring, device, tell)
            io.save(folder / FILE, Measured(identity, measuring, reports))
        source = "measured"
    return MeasuredRun(
        _name(folder), folder, _training(config), _predicting(reports), source, config.data.samples
    )


def _config(folder: Path) -> Training | None:
    """The configuration of a training; None for an analysis."""
    where = repr(str(folder))
    if not (folder / "config.json").exists():
        rule = "is not the folder of a run"
        raise CurvescopeError(where, rule, remedy="make one with curvescope train or analyze")
    kind = io.header(io.read_json(folder / "config.json"))
    if kind not in (Analysis.__name__, Training.__name__):
        raise CurvescopeError(where, "is neither a training nor an analysis, but something else")
    return None if kind == Analysis.__name__ else TrainingFolder(folder).config


def _name(folder: Path) -> str:
    place = folder.resolve()
    return place.parent.name if place.name == "analysis" else place.name


def _has_stage(folder: Path) -> bool:
    return (folder / "config.json").exists() and RunDirectory(folder).has(stage.NAME)


def _of_analysis(folder: Path, place: Path) -> MeasuredRun:
    run = RunDirectory(folder)
    measured = stage.sharpness_of(run)
    if measured is None:
        rule = "the analysis has not measured the sharpness yet"
        remedy = "go on with curvescope analyze"
        raise CurvescopeError(repr(str(folder)), rule, remedy=remedy)
    above = folder.resolve().parent
    config = _config(above) if (above / "config.json").exists() else None
    recipe = {} if config is None else _training(config)
    subject = {"network": run.config.model.name, "data": run.config.data.name}
    first, *others = measured.reports
    reports = (with_best_values(first, best_values(run)), *others)
    fitted = run.config.data.samples
    return MeasuredRun(
        _name(folder), place, {**subject, **recipe}, _predicting(reports), "analysis", fitted
    )


def _training(config: Training) -> dict[str, Any]:
    """The settings in which trainings may differ."""
    recipe = config.recipe
    settings = ("optimizer", "weight_decay", "lr", "momentum", "batch_size", "schedule", "epochs")
    return {
        "network": config.name,
        "data": config.data.name,
        **{key: getattr(recipe, key) for key in (*settings, "seed")},
        "penalty": config.penalty,
    }


def _stored(
    folder: Path, identity: str, measuring: Measuring
) -> tuple[SharpnessReport, ...] | None:
    """The stored reports of this training, measured in this way; None if there are none."""
    if not (folder / FILE).exists():
        return None
    stored = io.load(folder / FILE, Measured, remedy="--again measures it anew")
    same = (stored.training, stored.measuring) == (identity, measuring)
    return stored.reports if same else None


def _measure(
    folder: Path,
    config: Training,
    splits: load.Splits,
    measuring: Measuring,
    device: str,
    tell: Callable[[str], None],
) -> tuple[SharpnessReport, ...]:
    model = evaluated(trained.load_run(folder).to(load.choose_device(device)))
    recipe, few, loss = config.recipe, splits.train, config.recipe.minimized("compare")
    if measuring.samples is not None:
        g = torch.Generator().manual_seed(derived(measuring.seed, "samples"))
        few = load.choose_samples(few, measuring.samples, g)

    def problem(data: Any, mode: str = "eval") -> Problem:
        if mode == "eval":
            return Problem(model, data, loss=loss, batch_size=_BATCH)
        return Problem(model, _batches(data, recipe.batch_size), loss=loss, mode=mode)

    reports = {}
    for mode in ("eval", "train") if has_batch_statistics(model) else ("eval",):
        tell(f"{_name(folder)}: sharpness in {mode} mode")
        seed = derived(measuring.seed, f"sharpness {mode}")
        reports[mode] = sharpness(
            problem(few, mode),
            test=problem(splits.test) if mode == "eval" else None,
            tol=measuring.tol,
            probes=measuring.probes,
            generator=torch.Generator().manual_seed(seed),
        )
    # The gaps are those to all training data, also where the curvature is that of a part.
    reports["eval"] = replace(reports["eval"], train=scores(problem(splits.train)))
    return tuple(reports.values())


def _batches(data: Any, size: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of the training, without a last one of one sample, which has no variance.

    >>> [len(y) for _, y in _batches((torch.eye(5), torch.arange(5)), 2)]
    [2, 2]
    """
    X, y = getattr(data, "tensors", data)
    return [pair for pair in zip(X.split(size), y.split(size), strict=True) if len(pair[1]) > 1]


def _predicting(reports: Sequence[SharpnessReport]) -> dict[str, SharpnessReport]:
    """The reports by mode, all with the losses and errors of eval mode if that was measured."""
    by_mode = {report.mode: report for report in reports}
    predicting = by_mode.get("eval")
    if predicting is None:
        return by_mode
    return {
        mode: replace(r, train=predicting.train, test=predicting.test)
        for mode, r in by_mode.items()
    }
