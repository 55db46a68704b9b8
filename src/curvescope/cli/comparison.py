"""The table of a comparison: for the terminal, as Markdown, as CSV and as JSON."""

from __future__ import annotations

import csv
import io as text
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from curvescope import io
from curvescope._numbers import plus_minus, short
from curvescope.cli.staging import staged
from curvescope.errors import CurvescopeError
from curvescope.experiments.measured import MeasuredRun
from curvescope.figures import style
from curvescope.figures.draw import draw
from curvescope.figures.sharpness import against_generalization
from curvescope.flatness.comparison import GENERALIZATION, Comparison, compare_reports
from curvescope.spectra.estimate import Estimate

SETTINGS = {
    "optimizer": "optimizer",
    "weight_decay": "weight decay",
    "lr": "learning rate",
    "momentum": "momentum",
    "batch_size": "batch size",
    "schedule": "schedule",
    "epochs": "epochs",
    "penalty": "penalty",
    "seed": "seed",
}
ALWAYS = ("optimizer", "weight_decay")  # shown also where all runs have the same

Cells = dict[str, list[str]]
Column = tuple[str, MeasuredRun, str]  # its title, the run, the mode of the batch norms


def columns_of(runs: Sequence[MeasuredRun]) -> list[Column]:
    """A column for each run and mode of its batch norms, with a title."""
    return [
        (f"{name}, {mode}" if len(run.reports) > 1 else name, run, mode)
        for name, run in _named(runs).items()
        for mode in run.reports
    ]


def _named(runs: Sequence[MeasuredRun]) -> dict[str, MeasuredRun]:
    """Runs by the names of their folders; by the paths where two folders have the same name."""
    names = [run.name for run in runs]
    chosen = {run.name if names.count(run.name) == 1 else str(run.path): run for run in runs}
    if len(chosen) < len(runs):
        twice = next(run for run in runs if sum(r.path == run.path for r in runs) > 1)
        rule = f"{str(twice.path)!r} is named twice"
        raise CurvescopeError("compare", rule, remedy="name every run once")
    return chosen


def compared_columns(columns: Sequence[Column]) -> Comparison:
    """Compare the columns; refuse runs of different sizes, with the names of two of them."""
    reports = {name: run.reports[mode] for name, run, mode in columns}
    sizes = {name: r.hessian.dimension for name, r in reports.items()}
    _same("parameters", sizes, "compare runs of one network")
    behind = {name: round(1 / r.damping) if r.damping else 0 for name, r in reports.items()}
    _same("samples behind the curvature", behind, "--again measures all trainings alike")
    fitted = {name: run.fitted for name, run, _ in columns}
    _same("samples behind the training loss", fitted, "--again measures all trainings alike")
    return compare_reports(reports)


def _same(what: str, values: Mapping[str, int], remedy: str) -> None:
    first = next(iter(values))
    for other, value in values.items():
        if value != values[first]:
            numbers = f"{first!r} has {values[first]:,} and {other!r} {value:,}"
            rule = f"the number of {what} must be the same, {numbers}"
            raise CurvescopeError("compare", rule, remedy=remedy)


def cells_of(columns: Sequence[Column], compared: Comparison, *, errors: bool = False) -> Cells:
    """The table: a row for every quantity, a column for every run."""
    rows: Cells = {}
    for key, label in SETTINGS.items():
        values = [run.training.get(key) for _, run, _ in columns]
        if key in ALWAYS or len(set(map(str, values))) > 1:
            rows[label] = ["–" if value is None else _plain(value) for value in values]
    if any(len(run.reports) > 1 for _, run, _ in columns):
        rows["batch norms"] = [mode for _, _, mode in columns]
    for name, figures in _figures(compared).items():
        rows[name] = [_cell(name, figure, errors=errors) for figure in figures]
    return rows


def _figures(compared: Comparison) -> dict[str, tuple[Estimate[float] | None, ...]]:
    """The quantities that at least one run has, generalization first."""
    first = ("test error", "test loss", "error gap", "loss gap", "training error", "training loss")
    return {
        name: compared.table[name]
        for name in dict.fromkeys([*first, *compared.table])
        if any(figure is not None for figure in compared.table[name])
    }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(name: str, figure: Estimate[float] | None, *, errors: bool) -> str:
    if figure is None:
        return "–"
    if "error" in name:
        return f"{100 * figure.value:.2f}%"
    curvature = name not in GENERALIZATION and not name.startswith("training")
    if errors and curvature and isfinite(figure.stderr):
        return plus_minus(figure.value, figure.stderr)
    return short(figure.value)


def show(
    runs: Sequence[MeasuredRun],
    compared: Comparison,
    cells: Cells,
    verdicts: Sequence[str],
    console: Console,
) -> None:
    """Print the table and the conclusion."""
    subjects = {(str(r.training.get("network")), str(r.training.get("data"))) for r in runs}
    size = next(iter(runs[0].reports.values())).hessian.dimension
    for network, data in sorted(subjects):
        console.print(f"{network} ({size:,} parameters) on {data}", markup=False)
    table = Table("")
    table.columns[0].no_wrap = True
    for name in compared.runs:
        table.add_column(name, justify="right")
    for label, values in cells.items():
        table.add_row(label, *values)
    console.print(table)
    for sentence in _sentences(compared, verdicts):
        console.print(sentence, markup=False)


def _sentences(compared: Comparison, verdicts: Sequence[str]) -> list[str]:
    modes = list(dict.fromkeys(compared.modes))
    if len(modes) == 1:
        return [f"{verdicts[0][0].upper()}{verdicts[0][1:]}."]
    return [
        f"With batch norms in {mode} mode {said}."
        for mode, said in zip(modes, verdicts, strict=True)
    ]


def write(
    out: Path,
    columns: Sequence[Column],
    compared: Comparison,
    verdicts: Sequence[str],
    against: str,
    *,
    again: bool = False,
) -> list[Path]:
    """Write picture and table; returns the files.

    Args:
        out: The folder.
        columns: The runs.
        compared: Their comparison.
        verdicts: A sentence for each mode of the batch norms.
        against: Which measure of generalization is drawn.
        again: Whether existing files of another comparison, or of another program, are replaced.

    Raises:
        CurvescopeError: If there are such files and they are not to be replaced.
    """
    cells = cells_of(columns, compared, errors=True)
    picture = draw(against_generalization(compared, against))
    texts = {
        "comparison.md": _markdown(compared, cells, verdicts),
        "comparison.csv": _csv(compared, cells),
    }
    pictures = ("sharpness.svg", "sharpness.png")
    if not again:
        _refuse_others(out, (*pictures, *texts), texts)
    with staged(out) as fresh:
        for name in pictures:
            style.save(picture, fresh / name)
        for name, content in texts.items():
            with io.atomic(fresh / name) as temporary:
                temporary.write_text(content, encoding="utf-8")
    return [out / name for name in (*pictures, *texts)]


def _refuse_others(out: Path, names: Sequence[str], texts: Mapping[str, str]) -> None:
    """Refuse to replace the files of another comparison, which has other tables."""
    there = [name for name in names if (out / name).exists()]
    same = all(
        (out / name).is_file() and (out / name).read_bytes() == content.encode()
        for name, content in texts.items()
    )
    if there and not same:
        remedy = "name another folder, or replace it with --again"
        raise CurvescopeError(f"--out {str(out)!r}", f"holds another {there[0]}", remedy=remedy)


def _markdown(compared: Comparison, cells: Cells, verdicts: Sequence[str]) -> str:
    lines = [*_sentences(compared, verdicts), "", "![sharpness](sharpness.svg)", ""]
    lines.append("| | " + " | ".join(compared.runs) + " |")
    lines.append("|---" + "|---:" * len(compared.runs) + "|")
    lines += [f"| {label} | " + " | ".join(values) + " |" for label, values in cells.items()]
    return "\n".join(lines) + "\n"


def _csv(compared: Comparison, cells: Cells) -> str:
    """One line for each run; numbers in full, their errors in columns of their own."""
    settings = [label for label in cells if label not in compared.table]
    numbers = [label for label in cells if label in compared.table]
    buffer = text.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["run", *settings, *(n for name in numbers for n in (name, f"± {name}"))])
    for i, run in enumerate(compared.runs):
        figures: list[Any] = []
        for name in numbers:
            value = compared.table[name][i]
            figures += ["", ""] if value is None else [value.value, value.stderr]
        writer.writerow([run, *(cells[label][i] for label in settings), *figures])
    return buffer.getvalue()


def summary(
    columns: Sequence[Column],
    compared: Comparison,
    verdicts: Sequence[str],
    written: Sequence[Path],
) -> dict[str, Any]:
    """Everything as plain JSON."""

    def number(value: float) -> float | None:
        return value if isfinite(value) else None

    return {
        "runs": [
            {
                "name": name,
                "folder": str(run.path),
                "source": run.source,
                "mode": mode,
                "training": dict(run.training),
            }
            for name, run, mode in columns
        ],
        "table": {
            name: [
                None if v is None else {"value": number(v.value), "stderr": number(v.stderr)}
                for v in values
            ]
            for name, values in compared.table.items()
        },
        "correlations": [
            {k: number(v) if isinstance(v, float) else v for k, v in asdict(c).items()}
            for c in compared.correlations
        ],
        "findings": dict(zip(dict.fromkeys(compared.modes), verdicts, strict=True)),
        "written": [str(path) for path in written],
    }
