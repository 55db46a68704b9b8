"""Spectra of H, G and E: one interactive picture, and the outliers as a table."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from curvescope._numbers import percent, short
from curvescope.experiments.best_values import Table as Values
from curvescope.experiments.best_values import best_values
from curvescope.experiments.quantities import FROBENIUS, LARGEST, SMALL, SMALLEST, Value
from curvescope.experiments.stages.spectra import Spectrum, spectra_of
from curvescope.experiments.store import RunDirectory
from curvescope.figures import stages as pictures
from curvescope.reports.blocks import Block, Chart, Section, Table, Text
from curvescope.reports.sections.subject import classes_of, listed, ordinal

_GAP = 1.5
"""The least factor between neighboring eigenvalues that is called a gap."""
_CLOSE = 0.1
"""Outliers of H and G that differ by less, relative to the larger, are called the same."""


def build(run: RunDirectory) -> Section | None:
    """The section of the finished spectra; None while there are none."""
    spectra = spectra_of(run)
    if not spectra:
        return None
    table, classes = best_values(run), classes_of(run)
    drawn = pictures.spectra_panel(spectra, title="Spectral densities of H, G and E")
    blocks: list[Block] = [
        Chart("spectra", "Spectral densities with their bands", drawn),
        Text(_method(run, spectra)),
        _outliers(spectra),
    ]
    return Section(
        "spectra",
        "Spectra",
        _observation(spectra, table),
        _claim(classes),
        blocks,
        assessment=assessment(spectra, table, classes),
    )


def _observation(spectra: dict[str, Spectrum], table: Values) -> str:
    name, spectrum = next(iter(spectra.items()))
    low, high = _bulk(spectrum)
    row = table[name]
    taken = len(spectrum.residuals)
    return (
        f"The eigenvalues of {name} go from {_value(row[SMALLEST].value)} to "
        f"{_value(row[LARGEST].value)}; without the {taken} of largest magnitude, which are marked "
        f"at the foot, they lie between {_value(low)} and {_value(high)}, and "
        f"{percent(row[SMALL].value)} of all are smaller than a hundredth of the largest magnitude."
    )


def _bulk(spectrum: Spectrum) -> tuple[float, float]:
    """The range of the eigenvalues without those that were taken out.

    From all eigenvalues where these are known, else from the nodes of the quadrature that weigh
    anything: directions that were taken out leave nodes without weight.
    """
    taken, exact = len(spectrum.residuals), spectrum.exact
    if exact is not None:
        order = exact.values.abs().argsort(descending=True)
        rest = torch.cat([exact.values[order[taken:]], torch.zeros(min(exact.zeros, 1))])
    else:
        measure = spectrum.measure
        rest = measure.nodes[measure.weights > 1e-3 / measure.dimension]
    return (float(rest.min()), float(rest.max())) if len(rest) else (0.0, 0.0)


def _value(value: float) -> str:
    return short(value, 3)


def _claim(classes: int | None) -> str:
    if classes is None:
        return (
            "The paper’s spectra are those of classifiers: a bulk around zero and about as many "
            "outliers as classes; regression is left for future work (Papyan, “Traces of "
            "Class/Cross-Class Structure”, sec. 1.6)."
        )
    return (
        "A bulk centered around zero with a big concentration at zero and, arguably, as many "
        f"outliers as classes, here {classes} (Papyan, “Traces of Class/Cross-Class Structure”, "
        "sec. 4.1); the outliers are attributable to G, and the bulk largely to E (sec. 5.1)."
    )


def assessment(spectra: dict[str, Spectrum], table: Values, classes: int | None) -> str:
    """How far the numbers of the run agree with the paper.

    The width of a bulk is the root of the mean square of the eigenvalues that were not taken out.
    """
    if classes is None or not {"H", "G"} <= spectra.keys():
        return ""
    H, G = (_positive(spectra[name]) for name in ("H", "G"))
    parts = []
    if len(H) > classes:
        factor = float(H[classes - 1] / H[classes])
        gap = "a gap" if factor >= _GAP else "no clear gap"
        parts.append(
            f"After the {ordinal(classes)} eigenvalue of H there is {gap} (a factor of "
            f"{factor:.2f} to the next)"
        )
    k = min(len(H), len(G), classes)
    if k:
        apart = float(((H[:k] - G[:k]).abs() / H[:k]).max())
        same = "are those of G" if apart <= _CLOSE else "are not quite those of G"
        far = "less than 0.1" if apart < 1e-3 else f"up to {100 * apart:.1f}"
        parts.append(f"the {k} largest {same} (they differ by {far} %)")
    widths = [_width(spectra[name], table[name]) for name in ("H", "G")]
    if all(widths):
        ratio = widths[1] / widths[0]
        words = "owes little to E" if ratio > 0.9 else "is widened by E"
        words = "is largely that of E" if ratio <= 0.5 else words
        parts.append(f"the bulk {words} (that of G is {ratio:.2f} times as wide as H’s)")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _positive(spectrum: Spectrum) -> Tensor:
    """The largest eigenvalues, in order: positive ones among those of largest magnitude."""
    values = spectrum.measure.outliers
    return values[values > 0].sort(descending=True).values


def _width(spectrum: Spectrum, row: dict[str, Value]) -> float:
    outlier_squares = float(spectrum.measure.outliers.double().square().sum())
    rest = row[FROBENIUS].value ** 2 - outlier_squares
    return sqrt(max(rest, 0.0) / spectrum.measure.dimension)


def _method(run: RunDirectory, spectra: dict[str, Spectrum]) -> str:
    settings = run.config.settings
    text = (
        f"Each curve is a stochastic Lanczos quadrature with {settings.steps} steps and "
        f"{settings.probes} random vectors, after the eigenpairs of largest magnitude (the "
        "marks at the foot) were taken out exactly."
    )
    exact = [name for name, spectrum in spectra.items() if spectrum.exact is not None]
    if exact:
        text += f" For {listed(exact)} all eigenvalues are known exactly (shaded)."
    zero = [name for name, spectrum in spectra.items() if spectrum.vanishes]
    if zero:
        text += f" {listed(zero)} vanishes and is not drawn."
    return text


def _outliers(spectra: dict[str, Spectrum]) -> Table:
    """All outliers with their residuals, largest magnitude first."""
    longest = max(len(spectrum.measure.outliers) for spectrum in spectra.values())
    rows = []
    for i in range(longest):
        cells = []
        for spectrum in spectra.values():
            if i < len(spectrum.residuals):
                value, residual = float(spectrum.measure.outliers[i]), float(spectrum.residuals[i])
                cells.append(f"{short(value, 5)} ± {short(residual, 1)}")
            else:
                cells.append("")
        rows.append([str(i + 1), *cells])
    return Table(
        "Eigenvalues of largest magnitude ± residual norm", ["", *spectra], rows, folded=True
    )
