"""The overview: the network, how well it fits, and how sharp its minimum is."""

from __future__ import annotations

from dataclasses import replace

from curvescope._numbers import percent, short
from curvescope.experiments.best_values import Table as Values
from curvescope.experiments.best_values import best_values, best_values_of
from curvescope.experiments.quantities import (
    LARGEST,
    LOG_DETERMINANT,
    QUANTITIES,
    SMALL,
    TRACE,
    Value,
)
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.stages.sharpness import sharpness_of
from curvescope.experiments.store import RunDirectory
from curvescope.flatness.report import SharpnessReport
from curvescope.reports.blocks import Block, Section, Table, Text
from curvescope.reports.sections.subject import classes_of

_NAMES = {"H": "H (Hessian)", "G": "G (Gauss–Newton)", "E": "E = H − G"}


def build(run: RunDirectory) -> Section | None:
    """The section; None while the stage is not finished."""
    if not run.has("overview"):
        return None
    overview, table = run.result("overview", Overview), best_values(run)
    blocks: list[Block] = [_fits(overview)]
    if table:
        blocks += [*_measures(run, table), Text(_HOW)]
    if (measured := sharpness_of(run)) is not None:
        blocks.append(_norms(measured.primary, overview.gradient_norm, table))
    blocks.append(_layers(overview.layers))
    return Section("overview", "Overview", _observation(overview, table), _claim(run), blocks)


_HOW = (
    "exact: from all eigenvalues, or from an identity, up to rounding; ± after an eigenvalue: the "
    "norm of its residual, within which an eigenvalue lies; ± after a sum: its standard error; ≤ "
    "and ≥: all that the eigenpairs of largest magnitude say. Largest and smallest are algebraic."
)


def _observation(overview: Overview, table: Values) -> str:
    text = f"The network has {overview.parameters:,} parameters and a training loss of "
    text += short(overview.train.loss)
    if overview.test is not None:
        text += f", against {short(overview.test.loss)} on the test data"
        if overview.test.error is not None:
            text += f", where it errs on {percent(overview.test.error)}"
    row = table.get("H", {})
    if LARGEST in row and TRACE in row:
        text += (
            f"; the Hessian of the training loss has the largest eigenvalue "
            f"{short(row[LARGEST].value)} and the trace {short(row[TRACE].value)}"
        )
    return text + "."


def _claim(run: RunDirectory) -> str:
    """For cross-entropy the paper's argument; for other losses, one that holds for any loss."""
    if classes_of(run) is None:
        return (
            "Sharpness alone says little: with two weights in a chain, one times α and the other "
            "divided by α, the loss stays as it is and the Hessian and its trace do not (Granziol, "
            "“Flatness is a False Friend”, sec. 2)."
        )
    return (
        "Sharpness alone says little about generalization: with cross-entropy the measures of the "
        "Hessian shrink as weights grow and the loss is driven to zero, so that a network with "
        "weight decay can be sharper and generalize better (Granziol, “Flatness is a False "
        "Friend”, sec. 3 and 4)."
    )


def _fits(overview: Overview) -> Table:
    rows = [
        [split, f"{fit.samples:,}", short(fit.loss), percent(fit.error)]
        for split, fit in overview.fits.items()
    ]
    if overview.test is not None:
        gap = overview.test.loss - overview.train.loss
        errors = overview.test.error, overview.train.error
        difference = None if None in errors else errors[0] - errors[1]  # type: ignore[operator]
        rows.append(["gap", "", short(gap), percent(difference)])
    return Table("Fit", ["split", "samples", "loss", "error"], rows)


def _measures(run: RunDirectory, table: Values) -> list[Table]:
    """A column for each matrix; with batch norms, a second table for their other mode."""
    tables = {"": table}
    if (measured := sharpness_of(run)) is not None:
        primary, *others = measured.reports
        if others:
            tables = {f", batch norm in {primary.mode} mode": table}
        for report in others:
            tables[f", batch norm in {report.mode} mode"] = best_values_of({}, report)
    return [
        Table(
            f"Measures of sharpness{words}",
            ["", *(_NAMES[name] for name in rows)],
            [
                [quantity, *(cell(quantity, row.get(quantity)) for row in rows.values())]
                for quantity in QUANTITIES
                if any(quantity in row for row in rows.values())
            ],
            heading=f"How sharp it is{words}",
        )
        for words, rows in tables.items()
    ]


def cell(quantity: str, value: Value | None) -> str:
    """A value as the cell of a table; shares in per cent."""
    if value is None:
        return "–"
    if quantity == SMALL:
        text = str(value.scaled(100))
        return f"{text.removesuffix(' exact')} %" + (" exact" if value.how == "exact" else "")
    return str(value)


def _norms(report: SharpnessReport, gradient: float, table: Values) -> Table:
    weights = report.weights
    trace = table["H"][TRACE]
    metric = replace(trace, value=trace.value + weights.squared / 2)
    determinant = str(table["G"][LOG_DETERMINANT])
    rows = [
        ["weight norm ‖w‖", short(weights.norm, 5)],
        ["gradient norm", short(gradient, 3)],
        ["tr H + ½‖w‖² (practical PAC-Bayes, eq. 7)", str(metric)],
        [f"log det(G + {short(report.damping, 3)} I)", determinant],
    ]
    return Table("Norms and combinations", ["", "value"], rows)


def _layers(layers: dict[str, int]) -> Table:
    rows = [[name or "the model itself", f"{size:,}"] for name, size in layers.items()]
    return Table("Layers and their parameters", ["layer", "parameters"], rows, folded=True)
