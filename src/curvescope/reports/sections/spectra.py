"""Spectra of H, G and E: one interactive picture, and the outliers as a table."""

from __future__ import annotations

from curvescope.experiments.stages import spectra
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.experiments.store import RunDirectory
from curvescope.reports import charts
from curvescope.reports.blocks import Block, Chart, Section, Table, Text, percent, short


def build(run: RunDirectory) -> Section | None:
    """The spectra that are finished."""
    found = {
        name: spectra.restore(run.stage(f"spectrum-{name}"))
        for name in spectra.MATRICES
        if run.has(f"spectrum-{name}")
    }
    if not found:
        return None
    outputs = run.stage("overview").values["outputs"]
    spec = charts.density_chart(
        found, title="Spectral densities of H, G and E", colours=charts.OF_MATRIX
    )
    blocks: list[Block] = [
        Chart("spectra", "Spectral densities with bands of two standard errors", spec),
        Text(_method(run, found)),
        _outliers(found),
    ]
    return Section("spectra", "Spectra", _seen(found, outputs), _expected(outputs), blocks)


def _seen(found: dict[str, Spectrum], outputs: int) -> str:
    name, spectrum = next(iter(found.items()))
    values = spectrum.measure.outliers.sort(descending=True).values
    low, high = spectrum.measure.support
    text = (
        f"{name} has its largest eigenvalue at {short(float(values[0]))} and a bulk between "
        f"{short(low, 3)} and {short(high, 3)}, with {percent(spectrum.degenerate.value)} of all "
        "eigenvalues at zero"
    )
    if len(values) > outputs:
        inside, outside = float(values[outputs - 1]), float(values[outputs])
        if outside > 0:
            text += (
                f"; from the {ordinal(outputs)} to the {ordinal(outputs + 1)} eigenvalue it falls "
                f"by the factor {inside / outside:.2f}"
            )
    return text + "."


def _expected(outputs: int) -> str:
    return (
        "A bulk around zero with many eigenvalues at zero itself, and about as many outliers as "
        f"classes (here {outputs}); the outliers come from G, and the bulk of H owes most of its "
        "width to E (Papyan, “Traces of Class/Cross-Class Structure”, sec. 4.1 and 5.1)."
    )


def ordinal(n: int) -> str:
    """The number as a rank.

    >>> [ordinal(n) for n in (1, 2, 3, 10, 11, 22)]
    ['1st', '2nd', '3rd', '10th', '11th', '22nd']
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th") if n % 100 not in (11, 12, 13) else "th"
    return f"{n}{ending}"


def _method(run: RunDirectory, found: dict[str, Spectrum]) -> str:
    settings = run.config["settings"]
    text = (
        f"Each curve is a stochastic Lanczos quadrature with {settings['steps']} steps and "
        f"{settings['probes']} random vectors, after the eigenpairs of largest magnitude (the "
        "marks at the foot) were taken out exactly."
    )
    exact = [name for name, spectrum in found.items() if spectrum.exact is not None]
    if exact:
        text += f" For {' and '.join(exact)} all eigenvalues are known exactly (shaded)."
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
                cells.append(f"{short(value, 5)} ± {residual:.0e}")
            else:
                cells.append("")
        rows.append([str(i + 1), *cells])
    return Table(
        "Eigenvalues of largest magnitude ± residual norm", ["", *found], rows, folded=True
    )
