"""The best known value of every quantity of H, G and E: decided here, shown everywhere.

A number can come from several stages: an estimate with its standard error, an eigenvalue with its
residual, or all eigenvalues. What is exact beats an eigenvalue that converged, which beats an
estimate; of two of a kind, the one with the smaller error is taken. Reports, tables of the command
line and the run's own ``summary`` all read these, so that they show the same numbers.
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
    Known,
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

Table = dict[str, dict[str, Known]]
"""Matrix -> quantity -> its best known value."""


@dataclass(frozen=True)
class Summary:
    """The result of the last stage: the best known values, and the products of all spectra."""

    known: dict[str, dict[str, Known]]
    products: int


def known(run: RunDirectory) -> Table:
    """The best known values of a run's finished stages: from its summary, once that is there.

    ``table["H"][TRACE]`` is ``tr H``; a quantity of which nothing is known is missing.
    """
    if run.has("summary"):
        return run.result("summary", Summary).known
    report = sharpness.sharpness_of(run)
    return of(spectra.spectra_of(run), None if report is None else report.own)


def of(measured: Mapping[str, Spectrum], report: SharpnessReport | None) -> Table:
    """The best known values of matrices from their spectra and from the sharpness report."""
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
        table[name] = with_derived({q: known for q, known in row.items() if known}, size)
    spectrum = measured.get("G")
    if report is not None:
        table["G"][LOG_DETERMINANT] = log_determinant_of(spectrum, report)
    return table


def improved(report: SharpnessReport, table: Table) -> SharpnessReport:
    """The sharpness report with the best known values in the place of its own."""
    determinant = table.get("G", {}).get(LOG_DETERMINANT)
    return replace(
        report,
        hessian=_improved(report.hessian, table.get("H", {})),
        gauss_newton=_improved(report.gauss_newton, table.get("G", {})),
        log_determinant=_better(report.log_determinant, determinant),
    )


def _improved(measures: CurvatureMeasures, row: Mapping[str, Known]) -> CurvatureMeasures:
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


def _better(estimate: Estimate[float], known: Known | None) -> Estimate[float]:
    if known is None or known.how in ("at most", "at least"):
        return estimate
    stderr, bias = (known.error, 0.0) if known.how == "estimate" else (0.0, known.error)
    return replace(estimate, value=known.value, stderr=stderr, bias=bias, status=Status.DONE)
