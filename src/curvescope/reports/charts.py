"""From results to what the page's script draws: plain numbers, rounded, nothing of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from curvescope.experiments.stages.spectra import Spectrum

COLOURS = ("blue", "vermilion", "green", "orange", "purple", "sky", "grey")
OF_MATRIX = {"H": "blue", "G": "vermilion", "E": "green"}
_DASHES = ("", "7 4", "2 3")
_FLOOR = 1e-7
"""Where a logarithmic axis ends, relative to the largest eigenvalue."""


def rounded(values: Tensor | Sequence[float], digits: int = 7) -> Any:
    """Nested lists of numbers with so many digits; what is not finite becomes null.

    >>> rounded([1.23456789, float("nan")], 3)
    [1.23, None]
    """
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [rounded(value, digits) for value in values]
    number = float(values)  # type: ignore[arg-type]
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def appearance(index: int) -> dict[str, str]:
    """Colour and, when the colours are used up, dashes of the curve with this number.

    >>> appearance(0), appearance(8)
    ({'colour': 'blue'}, {'colour': 'vermilion', 'dash': '7 4'})
    """
    found = {"colour": COLOURS[index % len(COLOURS)]}
    if index >= len(COLOURS):
        found["dash"] = _DASHES[index // len(COLOURS) % len(_DASHES)]
    return found


def density_chart(
    spectra: Mapping[str, Spectrum], *, title: str, colours: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Densities over each other, with their outliers and, where known, all eigenvalues.

    A matrix that vanishes has no density and is left out, unless it is all there is.

    Args:
        spectra: Name in the legend -> spectrum.
        title: What the chart is called for those who do not see it.
        colours: Name in the legend -> colour; by default one after the other.
    """
    spectra = {name: s for name, s in spectra.items() if not s.vanishes} or spectra
    looks = {name: appearance(i) for i, name in enumerate(spectra)}
    if colours is not None:
        looks = {name: {"colour": colours[name]} for name in spectra}
    eps = _FLOOR * max(
        float(spectrum.measure.outliers.abs().max()) for spectrum in spectra.values()
    )
    eps = max(eps, 1e-30)
    series: list[dict[str, Any]] = []
    for row, (name, spectrum) in enumerate(spectra.items(), 1 - len(spectra)):
        density = _density(name, spectrum, eps)
        # Marks of equal outliers stand above each other.
        series.append({**density, **looks[name], "row": -row})
    for name, spectrum in spectra.items():
        if spectrum.exact is not None:
            exact = _exact(f"{name}, all eigenvalues", spectrum)
            series.append({**exact, "colour": looks[name]["colour"]})
    return {
        "title": title,
        "eps": eps,
        "bulk": True,
        "x": {
            "name": "λ",
            "label": "eigenvalue λ",
            "log_label": "|λ|",
            "toggle": "log |λ|",
            "log": False,
        },
        "y": {
            "label": "density",
            "log_label": "density per decade",
            "toggle": "log density",
            "log": True,
        },
        "series": series,
        "hint": "Drag across the picture to zoom, double-click to see everything again.",
    }


def _density(name: str, spectrum: Spectrum, eps: float) -> dict[str, Any]:
    measure = spectrum.measure
    pairs = zip(measure.outliers.tolist(), spectrum.residuals.tolist(), strict=True)
    return {
        "kind": "density",
        "name": name,
        "nodes": rounded(measure.nodes),
        "weights": rounded(measure.weights),
        "sigma": rounded([measure.density(points=2).sigma])[0],
        "log_sigma": rounded([measure.log_density(eps, points=2).sigma / math.log(10)])[0],
        "outliers": [rounded([value, residual]) for value, residual in pairs],
        "dimension": measure.dimension,
    }


def _exact(name: str, spectrum: Spectrum) -> dict[str, Any]:
    assert spectrum.exact is not None
    return {
        "kind": "histogram",
        "name": name,
        "values": rounded(spectrum.exact.values, 6),
        "zeros": spectrum.exact.zeros,
        "dimension": spectrum.measure.dimension,
    }


def line_chart(
    lines: Mapping[str, Mapping[str, Any]],
    *,
    title: str,
    x: str,
    y: str,
    log: bool = False,
    toggles: bool = False,
    across: bool = False,
    zero: bool = True,
) -> dict[str, Any]:
    """Lines or points.

    Args:
        lines: Name in the legend -> ``x``, ``y`` and, if wanted, ``colour``, ``dash`` (as SVG has
            it, ``"6 4"``), ``width``, ``marks``, ``kind`` (``"line"`` or ``"points"``), ``low`` and
            ``high`` of a band. The first lies on top.
        title: What the chart is called for those who do not see it.
        x: The label of the horizontal axis.
        y: The label of the vertical axis.
        log: Whether the vertical axis begins logarithmic.
        toggles: Whether both axes can be made logarithmic.
        across: Whether the horizontal axis begins logarithmic.
        zero: Whether a linear vertical axis includes zero.
    """
    series = []
    for i, (name, line) in enumerate(lines.items()):
        entry = {"kind": "line", "name": name, **appearance(i), **line}
        for key in ("x", "y", "low", "high"):
            if key in entry:
                entry[key] = rounded(entry[key], 6)
        series.append(entry)
    x_axis: dict[str, Any] = {"name": x, "label": x, "log_label": x, "log": across}
    y_axis: dict[str, Any] = {"label": y, "log": log, "zero": zero}
    if toggles:
        x_axis["toggle"], y_axis["toggle"] = "log across", "log up"
    return {"title": title, "x": x_axis, "y": y_axis, "series": series}


def heat_map(values: Tensor, *, title: str, x: str, y: str, top: float = 1.0) -> dict[str, Any]:
    """A matrix of numbers between 0 and ``top``."""
    return {
        "kind": "heat",
        "title": title,
        "x": x,
        "y": y,
        "top": top,
        "values": rounded(values, 3),
    }
