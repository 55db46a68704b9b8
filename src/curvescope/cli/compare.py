"""``curvescope compare``: sharpness against generalisation for several runs."""

from __future__ import annotations

import csv
import io as text
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from curvescope import io
from curvescope._checks import CurvescopeError, one_of
from curvescope.cli.progress import Display, stoppable
from curvescope.experiments.checks import plus_minus
from curvescope.experiments.measured import MeasuredRun, Measuring, measured_run
from curvescope.plots import style
from curvescope.plots.sharpness import against_generalisation
from curvescope.sharpness.comparison import GENERALISATION, Comparison, compare_reports
from curvescope.spectra.estimate import Estimate

SETTINGS = {
    "optimizer": "optimiser",
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


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of curvescope train or analyse.")],
    against: Annotated[
        str, typer.Option(help="test error, test loss, error gap or loss gap.")
    ] = "test error",
    out: Annotated[
        Path | None, typer.Option(help="Write table (.md, .csv) and picture (.svg, .png) there.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Curvature on so many random training samples.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The folder with the data files.")] = None,
    data_seed: Annotated[
        int | None, typer.Option(help="The seed of random labels or sub-samples, as in training.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    again: Annotated[
        bool, typer.Option("--again", help="Measure trainings anew, whatever is there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.")] = False,
) -> None:
    """Compare runs: is the sharper or the flatter one better? Table, picture and one sentence.

    What an analysis has measured is used; a training without one is measured, and the numbers are
    kept in its folder. Runs must be of one network.

    \b
    curvescope compare runs/wd0 runs/wd1e-4 runs/wd5e-4
    curvescope compare runs/* --against "loss gap" --out comparison
    """  # noqa: D301 (\b keeps the lines of the examples apart)
    one_of("compare", "--against", against, tuple(GENERALISATION))
    if len(runs) < 2:
        msg = f"compare: needs at least two runs, got {len(runs)}"
        raise CurvescopeError(msg)
    measuring = Measuring(samples=samples, seed=seed)
    advice = "what was measured is kept in the folders of the runs: the same command goes on"
    with stoppable(advice), Display(quiet=quiet or as_json) as display:
        found = [
            measured_run(
                folder,
                measuring,
                root=root,
                data_seed=data_seed,
                device=device,
                again=again,
                tell=display.stage,
            )
            for folder in runs
        ]
    named = _named(found)
    columns = [
        (f"{name}, {mode}" if len(run.reports) > 1 else name, run, mode)
        for name, run in named.items()
        for mode in run.reports
    ]
    compared = _compared(columns)
    verdicts = [compared.verdict(against, mode=mode) for mode in dict.fromkeys(compared.modes)]
    written = [] if out is None else _write(out, columns, compared, verdicts, against)
    if as_json:
        typer.echo(json.dumps(_summary(columns, compared, verdicts, written), indent=2))
    else:
        cells = _cells(columns, compared)
        show(found, compared, cells, verdicts, Console(highlight=False, soft_wrap=True))
        for path in written:
            typer.echo(str(path))


def _named(runs: Sequence[MeasuredRun]) -> dict[str, MeasuredRun]:
    """Runs by the names of their folders; by the paths where two folders have the same name."""
    names = [run.name for run in runs]
    chosen = {run.name if names.count(run.name) == 1 else str(run.path): run for run in runs}
    if len(chosen) < len(runs):
        twice = next(run for run in runs if sum(r.path == run.path for r in runs) > 1)
        msg = f"compare: {str(twice.path)!r} is named twice; name every run once"
        raise CurvescopeError(msg)
    return chosen


def _compared(columns: Sequence[Column]) -> Comparison:
    """Refuse runs whose numbers cannot be held beside each other, by the names of two of them."""
    reports = {name: run.reports[mode] for name, run, mode in columns}
    sizes = {name: r.hessian.dimension for name, r in reports.items()}
    _same("parameters", sizes, "compare runs of one network")
    behind = {name: round(1 / r.damping) if r.damping else 0 for name, r in reports.items()}
    _same("samples behind the curvature", behind, "--again measures all trainings alike")
    return compare_reports(reports)


def _same(what: str, values: Mapping[str, int], remedy: str) -> None:
    first = next(iter(values))
    for other, value in values.items():
        if value != values[first]:
            msg = (
                f"compare: the number of {what} must be the same, {first!r} has "
                f"{values[first]:,} and {other!r} {value:,}; {remedy}"
            )
            raise CurvescopeError(msg)


def _cells(columns: Sequence[Column], compared: Comparison, *, errors: bool = False) -> Cells:
    """The table: a row for every quantity, a column for every run."""
    rows: Cells = {}
    for key, label in SETTINGS.items():
        values = [run.training.get(key) for _, run, _ in columns]
        if key in ALWAYS or len(set(map(str, values))) > 1:
            rows[label] = ["–" if value is None else _plain(value) for value in values]
    if any(len(run.reports) > 1 for _, run, _ in columns):
        rows["batch norms"] = [mode for _, _, mode in columns]
    for name, figures in _figures(compared).items():
        rows[name] = [_shown(name, figure, errors=errors) for figure in figures]
    return rows


def _figures(compared: Comparison) -> dict[str, tuple[Estimate[float] | None, ...]]:
    """What some run has, generalisation first."""
    first = ("test error", "test loss", "error gap", "loss gap", "training error", "training loss")
    return {
        name: compared.table[name]
        for name in dict.fromkeys([*first, *compared.table])
        if any(figure is not None for figure in compared.table[name])
    }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shown(name: str, figure: Estimate[float] | None, *, errors: bool) -> str:
    if figure is None:
        return "–"
    if "error" in name:
        return f"{100 * figure.value:.2f}%"
    curvature = name not in GENERALISATION and not name.startswith("training")
    if errors and curvature and isfinite(figure.stderr):
        return plus_minus(figure.value, figure.stderr)
    return f"{figure.value:.4g}"


def show(
    runs: Sequence[MeasuredRun],
    compared: Comparison,
    cells: Cells,
    verdicts: Sequence[str],
    console: Console,
) -> None:
    """Print the table and the finding."""
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


def _write(
    out: Path,
    columns: Sequence[Column],
    compared: Comparison,
    verdicts: Sequence[str],
    against: str,
) -> list[Path]:
    io.make_folder(out)
    cells = _cells(columns, compared, errors=True)
    written = [
        *style.save(against_generalisation(compared, against), out / "sharpness.svg"),
        *style.save(against_generalisation(compared, against), out / "sharpness.png"),
    ]
    for name, content in (
        ("comparison.md", _markdown(compared, cells, verdicts)),
        ("comparison.csv", _csv(compared, cells)),
    ):
        with io.atomic(out / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
        written.append(out / name)
    return written


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


def _summary(
    columns: Sequence[Column],
    compared: Comparison,
    verdicts: Sequence[str],
    written: Sequence[Path],
) -> dict[str, Any]:
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
