"""The best available value of every quantity of H, G and E, with its error.

A number can come from several stages: an estimate with its standard error, an eigenvalue with its
residual, or all eigenvalues. What is exact beats an eigenvalue that converged, which beats an
estimate; of two of a kind, the one with the smaller error is taken. Reports, tables of the command
line and the stage ``summary`` all read these, so that they show the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from curvescope.experiments.quantities import (
    ABSOLUTE,
    FROBENIUS,
    LARGEST,
    LOG_DETERMINANT,
    SMALL,
    SMALLEST,
    TRACE,
    Value,
    absolute_of,
    dimension_of,
    end_of,
    frobenius_of,
    log_determinant_of,
    small_share,
    squared,
    traces_of,
    with_derived,
)
from curvescope.experiments.stages import sharpness, spectra
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.experiments.store import RunDirectory
from curvescope.flatness.measures import CurvatureMeasures
from curvescope.flatness.report import SharpnessReport
from curvescope.spectra.control import Status
from curvescope.spectra.estimate import Estimate

Table = dict[str, dict[str, Value]]
"""Matrix -> quantity -> its best value."""


@dataclass(frozen=True)
class Summary:
    """The result of the last stage: the best values, and the number of products of all spectra."""

    values: dict[str, dict[str, Value]]
    products: int


def best_values(run: RunDirectory) -> Table:
    """The best values of a run: read from its summary, or put together from the finished stages.

    ``table["H"][TRACE]`` is ``tr H``; a quantity that no stage has measured is missing.
    """
    if run.has("summary"):
        return run.result("summary", Summary).values
    report = sharpness.sharpness_of(run)
    return best_values_of(spectra.spectra_of(run), None if report is None else report.primary)


def best_values_of(measured: Mapping[str, Spectrum], report: SharpnessReport | None) -> Table:
    """The best values from the spectra of the matrices and from the sharpness report."""
    apart: dict[str, CurvatureMeasures] = {}
    if report is not None:
        apart = {"H": report.hessian, "G": report.gauss_newton}
    traces = traces_of(measured, apart)
    table: Table = {}
    for name in spectra.MATRICES:
        spectrum, measures = measured.get(name), apart.get(name)
        if spectrum is None and measures is None:
            continue
        row = {
            LARGEST: end_of(spectrum, measures, upper=True),
            SMALLEST: end_of(spectrum, measures, upper=False),
            TRACE: traces.get(name),
            FROBENIUS: frobenius_of(spectrum, measures),
            ABSOLUTE: absolute_of(name, spectrum, measures, traces.get(name)),
            SMALL: None if spectrum is None else small_share(spectrum),
        }
        size = dimension_of(spectrum, measures)
        table[name] = with_derived({q: value for q, value in row.items() if value}, size)
    spectrum = measured.get("G")
    if report is not None:
        table["G"][LOG_DETERMINANT] = log_determinant_of(spectrum, report)
    return table


def with_best_values(report: SharpnessReport, table: Table) -> SharpnessReport:
    """The sharpness report with its estimates replaced by the best values of ``table``."""
    determinant = table.get("G", {}).get(LOG_DETERMINANT)
    return replace(
        report,
        hessian=_with_best(report.hessian, table.get("H", {})),
        gauss_newton=_with_best(report.gauss_newton, table.get("G", {})),
        log_determinant=_better(report.log_determinant, determinant),
    )


def _with_best(measures: CurvatureMeasures, row: Mapping[str, Value]) -> CurvatureMeasures:
    squares = measures.square_sum
    if (norm := row.get(FROBENIUS)) is not None:
        squares = _better(squares, squared(norm))
    return replace(
        measures,
        largest=_better(measures.largest, row.get(LARGEST)),
        smallest=_better(measures.smallest, row.get(SMALLEST)),
        trace=_better(measures.trace, row.get(TRACE)),
        absolute_sum=_better(measures.absolute_sum, row.get(ABSOLUTE)),
        square_sum=squares,
    )


def _better(estimate: Estimate[float], value: Value | None) -> Estimate[float]:
    if value is None or value.how in ("at most", "at least"):
        return estimate
    stderr, bias = (value.error, 0.0) if value.how == "estimate" else (0.0, value.error)
    return replace(estimate, value=value.value, stderr=stderr, bias=bias, status=Status.DONE)
