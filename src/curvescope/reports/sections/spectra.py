"""Spectra of H, G and E: one interactive picture, and the outliers as a table."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from curvescope._numbers import percent, short
from curvescope.experiments.known import Table as Values
from curvescope.experiments.known import known
from curvescope.experiments.quantities import FROBENIUS, LARGEST, SMALL, SMALLEST, Known
from curvescope.experiments.stages.spectra import Spectrum, spectra_of
from curvescope.experiments.store import RunDirectory
from curvescope.figures import stages as pictures
from curvescope.reports.blocks import Block, Chart, Section, Table, Text
from curvescope.reports.sections.subject import classes_of, listed, ordinal

_GAP = 1.5
"""From one eigenvalue to the next, a factor that is called a gap."""
_CLOSE = 0.1
"""Outliers of H and G that differ by less, relative to the larger, are called the same."""


def build(run: RunDirectory) -> Section | None:
    """The spectra that are finished."""
    found = spectra_of(run)
    if not found:
        return None
    table, classes = known(run), classes_of(run)
    drawn = pictures.spectra_panel(found, title="Spectral densities of H, G and E")
    blocks: list[Block] = [
        Chart("spectra", "Spectral densities with their bands", drawn),
        Text(_method(run, found)),
        _outliers(found),
    ]
    return Section(
        "spectra",
        "Spectra",
        _seen(found, table),
        _expected(classes),
        blocks,
        verdict=verdict(found, table, classes),
    )


def _seen(found: dict[str, Spectrum], table: Values) -> str:
    name, spectrum = next(iter(found.items()))
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
    """Where the eigenvalues lie that were not taken out, as far as they have been seen.

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


def _expected(classes: int | None) -> str:
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


def verdict(found: dict[str, Spectrum], table: Values, classes: int | None) -> str:
    """How far the run is as the paper has it, from its own numbers.

    The width of a bulk is the root of the mean square of the eigenvalues that were not taken out.
    """
    if classes is None or not {"H", "G"} <= found.keys():
        return ""
    H, G = (_positive(found[name]) for name in ("H", "G"))
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
    widths = [_width(found[name], table[name]) for name in ("H", "G")]
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


def _width(spectrum: Spectrum, row: dict[str, Known]) -> float:
    known_part = float(spectrum.measure.outliers.double().square().sum())
    rest = row[FROBENIUS].value ** 2 - known_part
    return sqrt(max(rest, 0.0) / spectrum.measure.dimension)


def _method(run: RunDirectory, found: dict[str, Spectrum]) -> str:
    settings = run.config.settings
    text = (
        f"Each curve is a stochastic Lanczos quadrature with {settings.steps} steps and "
        f"{settings.probes} random vectors, after the eigenpairs of largest magnitude (the "
        "marks at the foot) were taken out exactly."
    )
    exact = [name for name, spectrum in found.items() if spectrum.exact is not None]
    if exact:
        text += f" For {listed(exact)} all eigenvalues are known exactly (shaded)."
    zero = [name for name, spectrum in found.items() if spectrum.vanishes]
    if zero:
        text += f" {listed(zero)} vanishes and is not drawn."
    return text


def _outliers(found: dict[str, Spectrum]) -> Table:
    """All outliers with their residuals, largest magnitude first."""
    longest = max(len(spectrum.measure.outliers) for spectrum in found.values())
    rows = []
    for i in range(longest):
        cells = []
        for spectrum in found.values():
            if i < len(spectrum.residuals):
                value, residual = float(spectrum.measure.outliers[i]), float(spectrum.residuals[i])
                cells.append(f"{short(value, 5)} ± {short(residual, 1)}")
            else:
                cells.append("")
        rows.append([str(i + 1), *cells])
    return Table(
        "Eigenvalues of largest magnitude ± residual norm", ["", *found], rows, folded=True
    )
