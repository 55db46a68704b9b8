"""The pictures of an analysis, from the results of its stages: on the page, in files, by plot.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from curvescope.experiments.stages.class_layers import ClassLayerFindings, FactorFindings
from curvescope.experiments.stages.class_structure import ClassFindings
from curvescope.experiments.stages.spectra import Spectrum
from curvescope.figures import spectra as spectrum_panels
from curvescope.figures import structure
from curvescope.figures.model import Curve, Dash, Panel, Picture
from curvescope.figures.results import register
from curvescope.structure.layer_comparison import LayerComparison

_FACTORS: dict[str, dict[str, Any]] = {
    "G": {"color": 1, "width": 1.8},
    "KFAC": {"color": 4, "dash": "dashed"},
    "CFAC": {"color": 0, "dash": "dotted"},
}
_DASHES: tuple[Dash, ...] = ("", "dashed", "dotted")


def spectra(name: str, spectra: Mapping[str, Spectrum]) -> Picture:
    """Densities with their bands; all eigenvalues as well where one matrix is shown alone."""
    caption = "Densities with their bands; eigenvalues that were taken out before as marks."
    return Picture(name, caption, (spectra_panel(spectra),), columns=1)


def spectra_panel(
    spectra: Mapping[str, Spectrum], *, title: str = "", by_matrix: bool = True
) -> Panel:
    """Spectra over each other, by matrix or by run.

    A matrix that vanishes has no density and is left out, unless it is all there is.
    """
    spectra = {
        name: spectrum for name, spectrum in spectra.items() if not spectrum.vanishes
    } or spectra
    curves = {
        name: spectrum_panels.Spectrum(each.measure, each.residuals, each.exact)
        for name, each in spectra.items()
    }
    return spectrum_panels.panel(
        curves,
        title=title or f"Spectrum of {', '.join(spectra)}",
        colors=spectrum_panels.OF_MATRIX if by_matrix else None,
        hide_exact=not by_matrix,
    )


def layer(name: str, findings: LayerComparison) -> Picture:
    """Eigenvalues, overlap with rank-one ratios, and the four correspondence matrices (DH)."""
    title = findings.name or "the model itself"
    panels = tuple(structure.layer(findings))
    return Picture(name, f"{title}: Hessian and Kronecker product.", panels, columns=3)


def attribution(name: str, findings: ClassFindings) -> Picture:
    """The largest eigenvalues of G by the part that makes most of each; knockouts if computed."""
    panels = [structure.attribution(findings.attribution)]
    if len(findings.whole):
        panels.append(knockouts(findings))
    return Picture(name, "Class structure of G.", tuple(panels))


def knockouts(findings: ClassFindings) -> Panel:
    """The eigenvalues of G with each part subtracted; those that disappear were made by it.

    The curves lie over each other where a part does nothing: G is a broad one underneath.
    """
    floor = structure.ROUNDING * float(findings.whole[0])
    whole = findings.whole[findings.whole > floor]
    curves = [Curve.of("G", None, whole, color=structure.GRAY, width=2.8)]
    for place, (part, values) in enumerate(findings.without.items()):
        rest = values[values > floor]
        label, dash = f"without the {part} part", _DASHES[place % len(_DASHES)]
        curves.append(Curve.of(label, None, rest, color=structure.PARTS[part], dash=dash))
    return Panel(
        "G with a part taken away", "index", "eigenvalue", tuple(curves),
        xscale=structure.scaling([1.0, len(whole)]), yscale=structure.scaling(whole),
    )  # fmt: skip


def class_layer(name: str, findings: ClassLayerFindings) -> Picture:
    """KFAC and CFAC beside the exact block, and the spectra of features and errors (TR)."""
    title = findings.name or "the model itself"
    panels = [moment(findings, kind) for kind in findings.moments]
    if findings.factors is not None:
        panels.insert(0, factors(findings.name, findings.factors))
    return Picture(name, f"{title} by class.", tuple(panels), columns=3)


def factors(name: str, findings: FactorFindings) -> Panel:
    """The spectra of a layer's exact block, of KFAC and of CFAC, as shares of each decade."""
    title = name or "the model itself"
    heights = torch.cat(list(findings.densities.values()))
    some = heights[heights > 0]
    foot = float(some.min()) / 2 if len(some) else 1.0
    peak = float(heights.max()) * 2 if len(some) else 2.0
    half = float(findings.centers[1] / findings.centers[0]) ** 0.5
    edges = torch.cat([findings.centers / half, findings.centers[-1:] * half])
    curves = []
    for matrix, look in _FACTORS.items():
        values = findings.densities[matrix].clamp(min=foot)
        steps = torch.cat([values, values[-1:]])
        curves.append(Curve.of(_with_zeros(matrix, findings), edges, steps, kind="steps", **look))
    return Panel(
        f"{title}: G, KFAC, CFAC", "eigenvalue", "share per decade", tuple(curves),
        xscale="log", yscale="log", ylim=(foot, max(peak, 100 * foot)),
    )  # fmt: skip


def _with_zeros(matrix: str, findings: FactorFindings) -> str:
    """The name with the share that a logarithmic axis cannot show."""
    share = findings.below.get(matrix, 0.0)
    return f"{matrix} ({100 * share:.0f} % below)" if share >= 0.005 else matrix


def moment(findings: ClassLayerFindings, kind: str) -> Panel:
    """The eigenvalues of a second moment and of its class parts, without those that are zero."""
    values = findings.moments[kind]
    cross = values.class_and_cross if kind == "errors" else None
    title = f"{findings.name or 'the model itself'}: {kind}"
    return structure.moment(title, values.total, values.class_part, cross)


def spectrum(name: str, findings: Spectrum) -> Picture:
    """The density of one matrix."""
    return spectra(name, {findings.name: findings})


OF_STAGE: dict[type, Callable[[str, Any], Picture]] = {
    Spectrum: spectrum,
    LayerComparison: layer,
    ClassFindings: attribution,
    ClassLayerFindings: class_layer,
}
"""By the type of a stage's result, its picture: a function of the stage's name and the result."""


def _panels(findings: Any) -> list[Panel]:
    return list(OF_STAGE[type(findings)]("", findings).panels)


for kind in OF_STAGE:
    if kind is not LayerComparison:  # a result of the library, which ``results`` draws
        register(kind, _panels)
