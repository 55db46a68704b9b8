"""The page of one training: its end, its course, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from curvescope import io
from curvescope._numbers import percent, short
from curvescope.figures.training import course
from curvescope.identity import file_digest
from curvescope.reports import monitoring
from curvescope.reports.blocks import Block, Chart, Links, Pair, Section, Table
from curvescope.reports.configuration import settings_table
from curvescope.reports.page import fill
from curvescope.reports.sections import certificate
from curvescope.training.folder import TrainingFolder
from curvescope.training.recipe import Recipe
from curvescope.training.records import Epoch, Result


def render_training(folder: Path, *, home: str = "", analysis: str = "") -> str:
    """The page as HTML, from the run's folder alone.

    Args:
        folder: Of ``curvescope train``, finished or not.
        home: The address of the list of runs, if there is one.
        analysis: The address of the page of the run's analysis, if there is one.

    Raises:
        CurvescopeError: If the folder holds no training, or its files are damaged.
    """
    run = TrainingFolder(folder)
    heading = f"{run.config.name} on {run.config.data.name or 'own data'}"
    recipe = run.config.recipe
    under = f"training, seed {recipe.seed}, {recipe.optimizer}, {recipe.epochs} epochs"
    return fill(
        "report.html.j2",
        title=heading,
        sections=_sections(run, analysis),
        heading=heading,
        under=under,
        home=home,
        refresh=monitoring.growing(folder) and run.result() is None,
    )


def weights_checksum(folder: Path) -> str | None:
    """The SHA-256 of the file with the final weights; None where there is none yet."""
    file = folder / "weights" / "final.safetensors"
    return file_digest(io.check_tensors(file)) if file.exists() else None


# Sections -------------------------------------------------------------------------------


def _sections(run: TrainingFolder, analysis: str) -> list[Section]:
    epochs, result = run.epochs(), run.result()
    blocks: list[Block] = [_end(run.path, epochs, result)]
    if analysis:
        blocks.append(Links([("Analysis of this network", analysis, "spectra, layers, classes")]))
    observation, claim = _observation(run.config.recipe, epochs, result), _claim(epochs)
    sections = [Section("end", "How it ended", observation, claim, blocks, "What it should be.")]
    if epochs:
        pictures = curves({"": epochs})
        sections.append(Section("curves", "Curves", blocks=[Pair(pictures)]))
    sections += monitoring.of_folder(run.path)
    if (section := certificate.of_folder(run.path)) is not None:
        sections.append(section)
    table = settings_table(io.encode(run.config)[0])
    opened = Table(table.caption, table.head, table.rows, prose=True)
    sections.append(Section("configuration", "Configuration", blocks=[opened]))
    return sections


def _observation(recipe: Recipe, epochs: Sequence[Epoch], result: Result | None) -> str:
    if result is None:
        return (
            f"The training is not finished: {len(epochs)} of {recipe.epochs} epochs are behind it."
        )
    if result.train is None:
        return f"The training diverged in epoch {result.diverged}; there are no final weights."
    text = f"After {len(epochs)} epochs the loss is {short(result.train.loss)} on the training data"
    if result.test is not None:
        text += f" and {short(result.test.loss)} on the test data"
        if isfinite(result.test.accuracy):
            text += f", where {percent(1 - result.test.accuracy)} of the answers are wrong"
    return text + "."


def _claim(epochs: Sequence[Epoch]) -> str:
    words = (
        "The same configuration on the same machine gives the same weights, to the last bit, also "
        "after an interruption: their checksum is below"
    )
    losses = [epoch.loss for epoch in epochs]
    if len(losses) > 1 and losses[-1] > losses[0]:
        words += "; the loss of the last epoch should be below that of the first, and is not"
    return f"{words}."


def _end(folder: Path, epochs: Sequence[Epoch], result: Result | None) -> Table:
    rows = []
    fits = {} if result is None else {"train": result.train, "test": result.test}
    for split, fit in fits.items():
        if fit is not None:
            rows.append([f"{split} loss", short(fit.loss)])
            if isfinite(fit.accuracy):  # a loss without right answers has none
                rows.append([f"{split} error", percent(1 - fit.accuracy)])
    if epochs:
        rows.append(["learning rate of the last epoch", short(epochs[-1].lr)])
        rows.append(["time", f"{sum(epoch.seconds for epoch in epochs):.1f} s"])
    rows.append(["final weights, SHA-256", weights_checksum(folder) or "not there yet"])
    return Table("The end of the training", ["", "value"], rows, prose=True)


def curves(runs: Mapping[str, Sequence[Epoch]]) -> list[Chart]:
    """Losses and accuracies of one or more runs; see :func:`curvescope.figures.training.course`."""
    charts = []
    for quantity, panel in course(runs).items():
        note = (
            f"Test {quantity} (dashed) is that of the weights after an epoch; training {quantity} "
            "is the mean over its steps, while they move."
        )
        charts.append(Chart(f"training-{quantity}", f"{panel.title} of each epoch", panel, note))
    return charts
