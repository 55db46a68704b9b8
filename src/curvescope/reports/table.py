"""The results of all runs below a folder as one table: a row for each run, named columns.

==================================== ===========================================================
``run``, ``kind``, ``state``         the folder; ``training``, ``analysis``, ``certificate`` or
                                     ``study``; how far it is; ``problem``: what went wrong
``plan.NAME``                        in a sweep: what the plan set for the run and for the runs
                                     that it needs, such as ``plan.lr`` beside ``H.largest``
``network``, ``data``, ``seed``      what it is about
``recipe.NAME``                      the recipe of a training, such as ``recipe.lr``
``settings.NAME``                    the settings of an analysis, such as ``settings.steps``
``epochs``, ``diverged``             epochs done; the one in which the loss ceased to be finite
``SPLIT.loss``, ``SPLIT.error``      the fit on ``train`` and ``test``
``parameters``, ``weight_norm``,     of the network that was analyzed
``gradient_norm``
``MATRIX.QUANTITY``,                 of ``H``, ``G`` and ``E``: ``largest``, ``smallest``,
``MATRIX.QUANTITY.error``            ``trace``, ``mean``, ``frobenius``, ``mean_square``,
                                     ``absolute``, ``effective_rank``, ``small_share`` and
                                     ``log_determinant``, with residual or standard error
``checks``, ``checks.failed``        self-checks of the analysis
``bound``, ``error_bound``,          a certificate: the bound on the error of new examples, that on
``empirical_error``, ``kl``,         the error on these, the error itself, the divergence, the
``confidence``                       probability
``scale``, ``judged``, ``agree``     a study: its scale; criteria that were applied and hold
``value.NAME``                       the numbers of a study
``seconds``                          of a training, an analysis or a study
==================================== ===========================================================

A number that a run does not have is None. Columns come in this order; those without any number are
left out.
"""

from __future__ import annotations

import csv
import io as texts
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope.certificates import Certificate
from curvescope.errors import CurvescopeError
from curvescope.experiments import quantities
from curvescope.experiments.best_values import best_values
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.store import RunDirectory
from curvescope.reports.runs import ListedRun, find_runs
from curvescope.studies import outcome as studies
from curvescope.studies.catalog import study_named
from curvescope.sweeps.queue import Result, State, Task, is_sweep, settings_with_needs, tasks_in
from curvescope.training.folder import TrainingFolder

Row = dict[str, Any]
_NAMES = {
    quantities.LARGEST: "largest",
    quantities.SMALLEST: "smallest",
    quantities.TRACE: "trace",
    quantities.MEAN: "mean",
    quantities.FROBENIUS: "frobenius",
    quantities.MEAN_SQUARE: "mean_square",
    quantities.ABSOLUTE: "absolute",
    quantities.RANK: "effective_rank",
    quantities.SMALL: "small_share",
    quantities.LOG_DETERMINANT: "log_determinant",
}
_ORDER = (
    "run", "kind", "state", "problem", "plan.", "network", "data", "seed", "recipe.", "settings.",
    "epochs", "diverged", "train.", "test.", "parameters", "weight_norm", "gradient_norm", "H.",
    "G.", "E.", "checks", "bound", "error_bound", "empirical_error", "kl", "confidence", "scale",
    "judged", "agree", "value.", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Named columns of one length.

    >>> table = Table({"run": ["a", "b"], "trace": [2.0, None]})
    >>> len(table), table["trace"], table.row(0)
    (2, [2.0, None], {'run': 'a', 'trace': 2.0})
    """

    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    def __getitem__(self, name: str) -> list[Any]:
        """A column."""
        if name not in self.columns:
            remedy = f"there are {', '.join(self.columns)}"
            raise CurvescopeError("table", f"there is no column {name!r}", remedy=remedy)
        return list(self.columns[name])

    def row(self, index: int) -> Row:
        """A row, by the names of the columns."""
        return {name: values[index] for name, values in self.columns.items()}

    def csv(self) -> str:
        """The table as comma-separated values; None is an empty cell."""
        text = texts.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(self.columns)
        for index in range(len(self)):
            lines.writerow(["" if v is None else v for v in self.row(index).values()])
        return text.getvalue()

    def save(self, path: io.PathLike) -> None:
        """Write a ``.csv`` or ``.parquet`` file, whole or not at all.

        Raises:
            CurvescopeError: If the name has another ending, or pyarrow is missing for Parquet.
        """
        place = Path(path)
        if place.suffix == ".csv":
            with io.atomic(place) as file:
                file.write_text(self.csv(), encoding="utf-8")
        elif place.suffix == ".parquet":
            try:
                import pyarrow
                from pyarrow import parquet
            except ImportError:
                rule, remedy = "Parquet needs pyarrow", "pip install 'curvescope[table]'"
                raise CurvescopeError("table", rule, remedy=remedy) from None
            columns = {name: _one_type(values) for name, values in self.columns.items()}
            with io.atomic(place) as file:
                parquet.write_table(pyarrow.table(columns), file)
        else:
            rule = "a table is written as .csv or .parquet"
            raise CurvescopeError(f"table({str(path)!r})", rule)


def table(folder: io.PathLike) -> Any:
    """The results of all runs below a folder, finished or not: a row for each, named columns.

    A ``pandas.DataFrame`` where pandas is installed, else a :class:`Table` with the same columns,
    which are listed in :mod:`curvescope.reports.table`. Nothing is computed, and nothing is written
    into the folder.

    Raises:
        CurvescopeError: If it is not a folder that can be read.

    >>> import tempfile
    >>> len(table(tempfile.mkdtemp()))
    0
    """
    plain = gather(folder)
    try:
        import pandas
    except ImportError:
        return plain
    return pandas.DataFrame({name: list(values) for name, values in plain.columns.items()})


def gather(folder: io.PathLike) -> Table:
    """The same, always as a :class:`Table`."""
    root = Path(folder).resolve()
    rows = list(_rows(root))
    names = list(dict.fromkeys(name for row in rows for name in row))
    filled = [name for name in names if any(row.get(name) is not None for row in rows)]
    filled.sort(key=_position)
    return Table({name: [row.get(name) for row in rows] for name in filled})


def _position(name: str) -> int:
    for position, start in enumerate(_ORDER):
        if name == start or (name.startswith(start) and start.endswith(".")):
            return position
    return next(i for i, start in enumerate(_ORDER) if name.startswith(start))


def _rows(root: Path) -> Iterator[Row]:
    plans = _Plans(root)
    for run in find_runs(root):
        row: Row = {"run": run.id, "kind": run.kind, "state": run.state}
        if run.whole and run.begun and run.kind in _READERS:
            try:
                row |= _READERS[run.kind](run)
            except CurvescopeError as error:  # damaged, or changed at this moment
                row["problem"] = str(error)
        yield {**row, **plans.about(root / run.id)}


class _Plans:
    """What the plans of sweeps say about runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sweeps: dict[Path, dict[str, tuple[Task, State, Result | None]]] = {}

    def about(self, place: Path) -> Row:
        """The columns of a run whose folder is that of a task, or lies in it."""
        above = [place, *place.parents]
        for folder in above[1 : len(above) - len(self._root.parts) + 1]:
            tasks = self._of(folder)
            for inner in above[: above.index(folder)]:
                if (name := inner.relative_to(folder).as_posix()) in tasks:
                    return self._columns(name, tasks)
        return {}

    def _of(self, folder: Path) -> dict[str, tuple[Task, State, Result | None]]:
        if folder not in self._sweeps:
            self._sweeps[folder] = tasks_in(folder) if is_sweep(folder) else {}
        return self._sweeps[folder]

    def _columns(self, name: str, tasks: Mapping[str, tuple[Task, State, Result | None]]) -> Row:
        task, _, result = tasks[name]
        settings = settings_with_needs(task, {key: each[0] for key, each in tasks.items()})
        row: Row = {f"plan.{key}": _cell(value) for key, value in settings.items()}
        if result is not None and result.problem:
            row["problem"] = result.problem
        return row


# One kind of run each ------------------------------------------------------------------------


def _training(run: ListedRun) -> Row:
    folder = TrainingFolder(run.path)
    config, result = folder.config, folder.result()
    recipe = {f"recipe.{name}": _cell(value) for name, value in asdict(config.recipe).items()}
    epochs = folder.epochs()
    row: Row = {"network": config.name, "data": config.data.name, "seed": config.recipe.seed}
    row |= {**recipe, "epochs": len(epochs), "seconds": sum(epoch.seconds for epoch in epochs)}
    row["parameters"] = sum(_size(shape) for shape in config.architecture.values())
    if result is not None:
        row["diverged"] = result.diverged
        for split, fit in (("train", result.train), ("test", result.test)):
            if fit is not None:
                row |= {f"{split}.loss": _cell(fit.loss), f"{split}.error": _cell(1 - fit.accuracy)}
    return row


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _analysis(run: ListedRun) -> Row:
    folder = RunDirectory(run.path)
    config = folder.config
    row: Row = {"network": config.model.name, "data": config.data.name, "seed": config.seed}
    row |= {f"settings.{name}": value for name, value in asdict(config.settings).items()}
    if folder.has("overview"):
        overview = folder.result("overview", Overview)
        row |= {
            "parameters": overview.parameters,
            "weight_norm": _cell(overview.weight_norm),
            "gradient_norm": _cell(overview.gradient_norm),
        }
        for split, fit in overview.fits.items():
            row |= {f"{split}.loss": _cell(fit.loss), f"{split}.error": fit.error}
    for matrix, values in best_values(folder).items():
        for quantity, value in values.items():
            name = f"{matrix}.{_NAMES[quantity]}"
            row |= {name: _cell(value.value), f"{name}.error": _cell(value.error)}
    checks = folder.checks()
    row["checks"] = len(checks)
    row["checks.failed"] = sum(not check.passed for _, check in checks)
    row["seconds"] = sum(folder.stage(name, Any).seconds for name in folder.stages)
    return row


def _certificate(run: ListedRun) -> Row:
    certificate = Certificate.load(run.path / "certificate.json")
    return {
        "bound": certificate.bound,
        "error_bound": certificate.error_bound,
        "empirical_error": certificate.empirical_error,
        "kl": certificate.kl,
        "confidence": float(certificate.confidence.level),
    }


def _study(run: ListedRun) -> Row:
    outcome = studies.load_file(run.path / studies.FILE)
    row: Row = {"network": None, "seed": outcome.seed, "scale": outcome.scale}
    row |= {f"value.{name}": _cell(number.ours) for name, number in outcome.values.items()}
    study = study_named(outcome.study)
    if study is not None:
        verdicts = [line.agrees for line in studies.lines(study, outcome)]
        judged = [verdict for verdict in verdicts if verdict is not None]
        row |= {"judged": len(judged), "agree": sum(judged)}
    return {**row, "seconds": outcome.seconds}


_READERS: dict[str, Callable[[ListedRun], Row]] = {
    "training": _training,
    "analysis": _analysis,
    "certificate": _certificate,
    "study": _study,
}


def _cell(value: Any) -> Any:
    """A number, a text or None; what has several parts as a text."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or None
    return value


def _one_type(values: Sequence[Any]) -> list[Any]:
    """A column as Parquet wants it: whole numbers beside others become floats, a mixture texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return list(values)
