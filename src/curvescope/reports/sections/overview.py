"""What was looked at, how well it fits, and how sharp it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curvescope.experiments.checks import Number
from curvescope.experiments.stages import sharpness
from curvescope.experiments.store import RunDirectory
from curvescope.reports.blocks import Block, Section, Table, percent, short
from curvescope.sharpness.measures import CurvatureMeasures
from curvescope.sharpness.report import SharpnessReport
from curvescope.spectra.estimate import Estimate


def build(run: RunDirectory) -> Section | None:
    """The overview, as soon as its stage is finished."""
    if not run.has("overview"):
        return None
    values = run.stage("overview").values
    blocks: list[Block] = [_fits(values["fits"])]
    if run.has("sharpness"):
        reports = sharpness.restore(run.stage("sharpness"))
        blocks.append(_measures(reports))
        blocks.append(_norms(next(iter(reports.values())), values["gradient norm"]))
    blocks.append(_layers(values["layers"]))
    return Section("overview", "Overview", _seen(values), _EXPECTED, blocks)


_EXPECTED = (
    "Sharpness alone says little about generalisation: with cross-entropy, weights that grow drive "
    "the loss, the gradient and the Hessian towards zero together, so that an unregularised "
    "network is often flatter and worse (Granziol, “Flatness is a False Friend”, sec. 3 and 4)."
)


def _seen(values: dict[str, Any]) -> str:
    fits = values["fits"]
    text = f"The network has {values['parameters']:,} parameters and a training loss of "
    text += short(fits["train"]["loss"])
    if "test" in fits:
        text += f", against {short(fits['test']['loss'])} on the test data"
        if fits["test"]["error"] is not None:
            text += f", where it errs on {percent(fits['test']['error'])}"
    return text + "."


def _fits(fits: dict[str, Any]) -> Table:
    rows = [
        [split, f"{fit['samples']:,}", short(fit["loss"]), percent(fit["error"])]
        for split, fit in fits.items()
    ]
    if "test" in fits:
        gap = fits["test"]["loss"] - fits["train"]["loss"]
        errors = [fits[split]["error"] for split in ("test", "train")]
        difference = None if None in errors else errors[0] - errors[1]
        rows.append(["gap", "", short(gap), percent(difference)])
    return Table("Fit", ["split", "samples", "loss", "error"], rows)


def number(estimate: Estimate[float]) -> str:
    """An estimate with the error that it has: residual for an end, standard error for a sum."""
    error = max(estimate.stderr, estimate.bias)
    if 0 < error < 1e-5 * abs(estimate.value):  # more digits than anyone reads
        return f"{short(estimate.value, 6)} ± {short(error, 1)}"
    return str(Number(estimate.value, error))


_ROWS: tuple[tuple[str, Callable[[CurvatureMeasures], Estimate[float]]], ...] = (
    ("largest eigenvalue", lambda m: m.largest),
    ("smallest eigenvalue", lambda m: m.smallest),
    ("trace", lambda m: m.trace),
    ("mean eigenvalue", lambda m: m.mean_eigenvalue),
    ("Frobenius norm", lambda m: m.frobenius),
    ("mean squared eigenvalue", lambda m: m.mean_square),
    ("sum of |eigenvalues|", lambda m: m.absolute_sum),
    ("effective rank", lambda m: m.effective_rank),
)


def _measures(reports: dict[str, SharpnessReport]) -> Table:
    """One column for each matrix and, with batch norms, each of their modes."""
    columns: dict[str, CurvatureMeasures] = {}
    for mode, report in reports.items():
        suffix = f", batch norm in {mode} mode" if len(reports) > 1 else ""
        columns[f"H (Hessian){suffix}"] = report.hessian
        columns[f"G (Gauss–Newton){suffix}"] = report.gauss_newton
    rows = [
        [label, *(number(pick(measures)) for measures in columns.values())] for label, pick in _ROWS
    ]
    return Table("Measures of sharpness", ["", *columns], rows, heading="How sharp it is")


def _norms(report: SharpnessReport, gradient: float) -> Table:
    trace, weights = report.hessian.trace, report.weights
    metric = Number(trace.value + weights.squared / 2, trace.stderr)
    rows = [
        ["weight norm ‖w‖", short(weights.norm, 5)],
        ["gradient norm", short(gradient, 3)],
        ["tr H + ½‖w‖² (practical PAC-Bayes, eq. 7)", str(metric)],
        [f"log det(G + {short(report.damping, 3)} I)", number(report.log_determinant)],
    ]
    return Table("Norms and combinations", ["", "value"], rows)


def _layers(layers: dict[str, int]) -> Table:
    rows = [[name or "the model itself", f"{size:,}"] for name, size in layers.items()]
    return Table("Layers and their parameters", ["layer", "parameters"], rows, folded=True)
