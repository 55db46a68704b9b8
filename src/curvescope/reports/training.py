"""The page of one training: how it went, how it ended, and what it was asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.figures import style
from curvescope.figures.model import Curve, Dash, Panel, Scaling
from curvescope.identity import file_digest
from curvescope.reports.blocks import Block, Chart, Links, Pair, Section, Table, percent, short
from curvescope.reports.configuration import settings_table
from curvescope.reports.page import fill
from curvescope.reports.sections import certificate


def render_training(folder: Path, *, home: str = "", analysis: str = "") -> str:
    """The page as HTML, from the run's folder alone.

    Args:
        folder: Of ``curvescope train``, finished or not.
        home: The address of the list of runs, if there is one.
        analysis: The address of the page of the run's analysis, if there is one.

    Raises:
        CurvescopeError: If the folder holds no training, or its files are damaged.
    """
    config = training_config(folder)
    heading = f"{network_of(config)} on {config['data'].get('name') or 'own data'}"
    recipe = config["recipe"]
    under = f"training, seed {recipe['seed']}, {recipe['optimizer']}, {recipe['epochs']} epochs"
    return fill(
        "report.html.j2",
        title=heading,
        sections=_sections(folder, config, analysis),
        heading=heading,
        under=under,
        home=home,
    )


def training_config(folder: Path) -> dict[str, Any]:
    """The configuration of a training, with a recipe and data in it.

    Raises:
        CurvescopeError: If it is missing or damaged.
    """
    config = io.read_json(folder / "config.json")
    recipe = config.get("recipe") if isinstance(config, dict) else None
    wanted = {"seed", "epochs", "optimizer"}
    if not isinstance(recipe, dict) or not wanted <= recipe.keys():
        msg = f"{str(folder)!r}: config.json is not that of a training, or damaged"
        raise CurvescopeError(msg)
    if not isinstance(config.get("data"), dict):
        msg = f"{str(folder)!r}: config.json does not say what was trained on"
        raise CurvescopeError(msg)
    return dict(config)


def network_of(config: Mapping[str, Any]) -> str:
    """The network's name; models of one's own have none."""
    return str((config.get("network") or {}).get("name") or "own model")


def epochs_of(folder: Path) -> list[dict[str, Any]]:
    """What was noted after each epoch; none before the first."""
    log = folder / "metrics.jsonl"
    found = io.read_json_lines(log) if log.is_file() else []
    if not all(isinstance(epoch, dict) and {"epoch", "loss"} <= epoch.keys() for epoch in found):
        msg = f"{str(log)!r}: has lines that are no epochs"
        raise CurvescopeError(msg)
    return found


def result_of(folder: Path) -> dict[str, Any] | None:
    """How the training ended; None while it has not.

    Raises:
        CurvescopeError: If the file is damaged.
    """
    if not (folder / "result.json").is_file():
        return None
    result = io.read_json(folder / "result.json")
    if not isinstance(result, dict) or not {"train", "test", "diverged"} <= result.keys():
        msg = f"{str(folder)!r}: result.json is damaged"
        raise CurvescopeError(msg)
    return result


def weights_checksum(folder: Path) -> str | None:
    """The SHA-256 of the file with the final weights; None where there is none yet."""
    file = folder / "weights" / "final.safetensors"
    return file_digest(file) if file.is_file() else None


# Sections -------------------------------------------------------------------------------


def _sections(folder: Path, config: dict[str, Any], analysis: str) -> list[Section]:
    epochs, result = epochs_of(folder), result_of(folder)
    blocks: list[Block] = [_end(folder, epochs, result)]
    if analysis:
        blocks.append(Links([("Analysis of this network", analysis, "spectra, layers, classes")]))
    seen, expected = _seen(config, epochs, result), _expected(config, epochs)
    sections = [Section("end", "How it ended", seen, expected, blocks, "What it should be.")]
    if epochs:
        pictures = curves({"this run": epochs})
        sections.append(Section("curves", "Curves", blocks=[Pair(pictures)]))
    if (found := certificate.of_folder(folder)) is not None:
        sections.append(found)
    table = settings_table(config)
    opened = Table(table.caption, table.head, table.rows, prose=True)
    sections.append(Section("configuration", "Configuration", blocks=[opened]))
    return sections


def _seen(
    config: dict[str, Any], epochs: Sequence[dict[str, Any]], result: dict[str, Any] | None
) -> str:
    asked = config["recipe"]["epochs"]
    if result is None:
        return f"The training is not finished: {len(epochs)} of {asked} epochs are behind it."
    if result["diverged"] is not None:
        return f"The training diverged in epoch {result['diverged']}; there are no final weights."
    train, test = result["train"], result["test"]
    text = f"After {len(epochs)} epochs the loss is {short(train['loss'])} on the training data"
    if test:
        text += f" and {short(test['loss'])} on the test data"
        if test.get("accuracy") is not None:
            text += f", where {percent(1 - test['accuracy'])} of the answers are wrong"
    return text + "."


def _expected(config: dict[str, Any], epochs: Sequence[dict[str, Any]]) -> str:
    words = (
        "The same configuration on the same machine gives the same weights, to the last bit, also "
        "after an interruption: their checksum is below"
    )
    losses = [epoch["loss"] for epoch in epochs]
    if len(losses) > 1 and losses[-1] > losses[0]:
        words += "; the loss of the last epoch should be below that of the first, and is not"
    return f"{words}."


def _end(folder: Path, epochs: Sequence[dict[str, Any]], result: dict[str, Any] | None) -> Table:
    rows = []
    for split in ("train", "test"):
        fit = (result or {}).get(split)
        if fit:
            rows.append([f"{split} loss", short(fit["loss"])])
            if fit.get("accuracy") is not None:
                rows.append([f"{split} error", percent(1 - fit["accuracy"])])
    if epochs:
        rows.append(["learning rate of the last epoch", short(epochs[-1].get("lr"))])
        rows.append(["time", f"{sum(epoch.get('seconds', 0.0) for epoch in epochs):.1f} s"])
    rows.append(["final weights, SHA-256", weights_checksum(folder) or "not there yet"])
    return Table("The end of the training", ["", "value"], rows, prose=True)


def curves(runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Chart]:
    """Losses and accuracies of one or more runs; the test's are dashed beside the training's.

    Args:
        runs: Name in the legend -> epochs.
    """
    charts = []
    for quantity, words in (("loss", "Loss"), ("accuracy", "Accuracy")):
        drawn: list[Curve] = []
        for index, (name, epochs) in enumerate(runs.items()):
            for key, label, dash in (
                (quantity, f"{name}, training", _dash(index)),
                (f"test_{quantity}", f"{name}, test", "dashed"),
            ):
                if (line := _line(epochs, key)) is not None:
                    label = label.removeprefix("this run, ")
                    drawn.append(replace(line, label=label, colour=index, dash=dash))
        if drawn:
            positive = all(min(curve.y) > 0 for curve in drawn)
            scale: Scaling = "log" if quantity == "loss" and positive else "linear"
            panel = Panel(words, "epoch", quantity, tuple(drawn), yscale=scale)
            note = (
                f"Test {quantity} (dashed) is that of the weights after an epoch; training "
                f"{quantity} is the mean over its steps, while they move."
            )
            charts.append(Chart(f"training-{quantity}", f"{words} of each epoch", panel, note))
    return charts


def _dash(index: int) -> Dash:
    """When the colors are used up, dots tell the next runs apart."""
    return "dotted" if index // len(style.CYCLE) % 2 else ""


def _line(epochs: Sequence[dict[str, Any]], key: str) -> Curve | None:
    chosen = [
        (epoch["epoch"], y)
        for epoch in epochs
        if (y := epoch.get(key)) is not None and isfinite(y)  # a training may diverge
    ]
    if not chosen:
        return None
    x, y = zip(*chosen, strict=True)
    return Curve.of("", x, y)
