"""The picture of each type of result, which ``cs.plot`` draws: a function from a result to panels.

The functions below are registered by the type in their signature. A new type of result needs one
more of them, here or, with :func:`register`, in a module that ``figures/plot.py`` imports, as
``stages`` and ``training`` do. Panels that pages need as well are made in ``figures/spectra.py``,
``structure.py`` and ``sharpness.py``; how they are drawn is decided in ``svg.py`` and ``draw.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from curvescope.certificates.certificate import Certificate
from curvescope.certificates.profile import Profile, variance_profile
from curvescope.errors import CurvescopeError
from curvescope.figures import spectra, structure
from curvescope.figures.model import Curve, Image, Panel, Picture, Scaling
from curvescope.figures.sharpness import against_generalization
from curvescope.figures.structure import GRAY
from curvescope.flatness.comparison import Comparison
from curvescope.flatness.degeneracy import DegeneracyHistory
from curvescope.flatness.subsampling import SubsamplingStudy
from curvescope.spectra import density
from curvescope.spectra.chebyshev import ChebyshevMoments
from curvescope.spectra.convergence import LanczosBounds
from curvescope.spectra.eigensolver import EigenPairs
from curvescope.spectra.exact import ExactSpectrum
from curvescope.spectra.measure import SpectralMeasure
from curvescope.spectra.tails import TailDensity
from curvescope.spectra.tridiagonal import Tridiagonal
from curvescope.structure.autocorrelation import AutocorrelationStructure
from curvescope.structure.centers import CenterMatch, LogitCenters
from curvescope.structure.class_factors import LayerApproximation
from curvescope.structure.clustering import Clusters, Embedding, LogitClusters
from curvescope.structure.correspondences import Correspondence, SingularStructure
from curvescope.structure.full_hessian import FullApproximation
from curvescope.structure.knockouts import HessianSplit, Knockouts
from curvescope.structure.layer_comparison import LayerComparison
from curvescope.structure.layers import LayerStatistics, MomentStatistics
from curvescope.structure.logistic import MisclassificationStudy
from curvescope.structure.network_factors import MeanCosines
from curvescope.structure.outliers import Attribution
from curvescope.structure.output_hessian import OutputTheory
from curvescope.structure.overlaps import EigenComparison, PairwiseOverlap
from curvescope.structure.prediction import OverlapPrediction
from curvescope.structure.traces import ClassTraces


def picture(result: object) -> Picture:
    """The picture of a result, or of a mapping of names to results of one kind.

    A mapping of densities, measures or exact spectra shares one pair of axes; any other has a panel
    for each name.

    >>> from curvescope.structure.overlaps import pairwise_overlap
    >>> shown = picture(pairwise_overlap([torch.eye(3), torch.eye(3)]))
    >>> shown.panels[0].curves[0].y
    (1.0, 1.0, 1.0)
    """
    if isinstance(result, Mapping):
        return _several(result)
    panels = tuple(_panels(result))
    if not panels:
        rule = f"there is nothing to draw in this {type(result).__name__}"
        raise CurvescopeError("plot", rule)
    return Picture(type(result).__name__, "", panels, columns=min(len(panels), 3))


def _several(results: Mapping[Any, Any]) -> Picture:
    """A mapping: densities over each other, anything else side by side."""
    if not results:
        rule = "there is nothing to draw in an empty mapping"
        raise CurvescopeError("plot", rule, remedy="give at least one result")
    kinds = {type(result) for result in results.values()}
    if kinds <= {SpectralMeasure}:
        together = {str(name): spectra.Spectrum(measure) for name, measure in results.items()}
        return Picture("spectra", "", (spectra.panel(together, colors=spectra.OF_MATRIX),), 1)
    if kinds <= {density.Curve, ExactSpectrum}:
        curves = [_density(str(name), result) for name, result in results.items()]
        return Picture("densities", "", (_density_panel(curves),), 1)
    panels = []
    for name, result in results.items():
        for panel in picture(result).panels:
            title = f"{name}: {panel.title}" if panel.title else str(name)
            panels.append(replace(panel, title=title))
    return Picture("results", "", tuple(panels), columns=min(len(panels), 3))


@singledispatch
def _panels(result: object) -> list[Panel]:
    """The panels of one result; this one refuses a type that is not registered."""
    drawable = ", ".join(sorted(kind.__name__ for kind in _panels.registry if kind is not object))
    rule = f"there is no picture of a {type(result).__name__}"
    raise CurvescopeError("plot", rule, remedy=f"there is one of {drawable}")


# Spectra --------------------------------------------------------------------------------------


def _density(name: str, result: density.Curve | ExactSpectrum) -> Curve:
    curve = result.density() if isinstance(result, ExactSpectrum) else result
    banded = bool(torch.isfinite(curve.stderr).all()) and bool(curve.stderr.any())
    low, high = curve.band() if banded else (None, None)
    return Curve.of(name, curve.grid, curve.values, low=low, high=high)


def _density_panel(curves: list[Curve]) -> Panel:
    peak = max(max(curve.y) for curve in curves)
    return Panel(
        "", "eigenvalue λ", "density", tuple(curves), yscale="log", ylim=(1e-6 * peak, 3 * peak)
    )


@_panels.register
def _(result: SpectralMeasure) -> list[Panel]:
    return [spectra.panel({"density": spectra.Spectrum(result)})]


@_panels.register
def _(result: density.Curve) -> list[Panel]:
    return [_density_panel([_density("density", result)])]


@_panels.register
def _(result: ExactSpectrum) -> list[Panel]:
    return [_density_panel([_density(f"all {result.dimension:,} eigenvalues", result)])]


@_panels.register
def _(result: ChebyshevMoments) -> list[Panel]:
    return [_density_panel([_density("kernel polynomials", result.density())])]


@_panels.register
def _(result: EigenPairs) -> list[Panel]:
    low, high = result.values - result.residuals, result.values + result.residuals
    curve = Curve.of("± residual", None, result.values, low=low, high=high, kind="points")
    scale = structure.scaling(torch.cat([result.values, low]))
    return [Panel("", "index", "eigenvalue", (curve,), yscale=scale)]


@_panels.register
def _(result: Tridiagonal) -> list[Panel]:
    values, residuals = result.ritz()
    low, high = values - residuals, values + residuals
    curve = Curve.of("± residual", None, values, low=low, high=high, kind="points")
    return [Panel("", "index", "Ritz value", (curve,))]


@_panels.register
def _(result: LanczosBounds) -> list[Panel]:
    size = (result.largest - result.smallest) or 1.0
    above = [(result.largest - value) / size for value in result.largest_at_least]
    below = [(value - result.smallest) / size for value in result.smallest_at_most]
    curves = tuple(
        Curve.of(f"the {name} one", result.steps, torch.tensor(gaps).clamp(min=1e-17))
        for name, gaps in (("largest", above), ("smallest", below))
    )
    label = "error of the Ritz value at most, of λ₁ − λₙ"
    return [Panel("", "Lanczos steps", label, curves, yscale="log")]


@_panels.register
def _(result: TailDensity) -> list[Panel]:
    sides = {"positive": result.positive, "negative, by |λ|": result.negative}
    curves = []
    for label, values in sides.items():
        shown = values > 0  # an empty bin has no logarithm
        if shown.any():
            curves.append(Curve.of(label, result.points[shown], values[shown], kind="points"))
    return [Panel("", "|λ|", "density", tuple(curves), xscale="log", yscale="log")]


# Structure ------------------------------------------------------------------------------------


def _cosines(title: str, values: Tensor, xlabel: str) -> Panel:
    shown = values.isfinite()
    places = torch.arange(len(values))[shown]
    curve = Curve.of("", places, values[shown], kind="bars")
    return Panel(title, xlabel, "cosine", (curve,), ylim=(min(0.0, *curve.y), 1.05))


@_panels.register
def _(result: CenterMatch) -> list[Panel]:
    return [_cosines("measured and predicted centers", result.cosines, "logit")]


@_panels.register
def _(result: LogitCenters) -> list[Panel]:
    parts = {"by weight, Δ": result.weight, "by output, Γ": result.output}
    return [_cosines(f"centers {name}", part.cosines, "logit") for name, part in parts.items()]


@_panels.register
def _(result: MeanCosines) -> list[Panel]:
    image = Image.of(result.cross.nan_to_num(0.0), low=0.0, high=1.0, label="cosine")
    title = "means of pairs of classes and their products"
    cross = Panel(title, "class of the direction", "class of the samples", image=image)
    return [_cosines("means of classes and their products", result.classes, "class"), cross]


@_panels.register
def _(result: PairwiseOverlap) -> list[Panel]:
    label = f"{len(result.curves)} pairs of models"
    curve = Curve.mean(label, None, result.curves, within=(0.0, 1.0))
    return [Panel("", "k", "overlap", (curve,), ylim=(0.0, 1.05))]


@_panels.register
def _(result: OverlapPrediction) -> list[Panel]:
    curve = Curve.of(f"expected: {result.verdict}", None, result.curve)
    lines = {f"m = {result.outputs}": float(result.outputs)}
    return [Panel("", "k", "expected overlap", (curve,), lines=lines, ylim=(0.0, 1.05))]


@_panels.register
def _(result: EigenComparison) -> list[Panel]:
    return [
        structure.eigenvalues("top eigenvalues", result.true, result.approximate),
        structure.overlaps(result.overlap),
    ]


@_panels.register
def _(result: LayerComparison) -> list[Panel]:
    return structure.layer(result)


@_panels.register
def _(result: OutputTheory) -> list[Panel]:
    names = ("E[M]", "in closed form")
    return [structure.eigenvalues(result.name, result.eigenvalues, result.predicted, names)]


@_panels.register
def _(result: FullApproximation) -> list[Panel]:
    curve = Curve.of("approximate", None, result.values)
    scale = structure.scaling(result.values)
    return [Panel("", "index", "eigenvalue of H", (curve,), yscale=scale)]


@_panels.register
def _(result: MisclassificationStudy) -> list[Panel]:
    curves = (
        Curve.of("theorem 8.1", result.errors, result.predicted),
        Curve.of("measured", result.errors, result.measured, kind="points"),
    )
    return [Panel("", "error", result.ratio, curves)]


@_panels.register
def _(result: SingularStructure) -> list[Panel]:
    curve = Curve.of("‖Mat(h)‖ / ‖Mat(h)‖_F", None, result.ratio, kind="points")
    return [Panel("how near to rank one", "eigenvector", "share", (curve,), ylim=(0.0, 1.05))]


@_panels.register
def _(result: Correspondence) -> list[Panel]:
    return [structure.correspondence(result.matrix, result.side)]


@_panels.register
def _(result: AutocorrelationStructure) -> list[Panel]:
    shares = result.eigenvalues[:20] / result.eigenvalues[0]
    curve = Curve.of("eigenvalue over the first", None, shares)
    title = (
        f"{result.name}: (v₁·Ê[x])² = {result.alignment:.4g}, λ₁/λ₂ = {result.spectral_ratio:.4g}"
    )
    return [Panel(title, "index", "eigenvalue of E[xxᵀ] over the first", (curve,))]


@_panels.register
def _(result: Embedding) -> list[Panel]:
    by_logit = _groups(result.points.transpose(0, 1), result.logit_centers, "logit")
    by_class = _groups(result.points, result.class_centers, "class")
    return [
        Panel("by logit", "first coordinate", "second coordinate", by_logit),
        Panel("by class", "first coordinate", "second coordinate", by_class),
    ]


@_panels.register
def _(result: Clusters) -> list[Panel]:
    plane = result.points.flatten(0, 1)[:, :2].reshape(*result.points.shape[:2], -1)
    if plane.shape[-1] < 2:
        plane = torch.nn.functional.pad(plane, (0, 1))
    by_logit = _groups(plane.transpose(0, 1), plane.mean(0), "logit")
    by_class = _groups(plane, plane.mean(1), "class")
    return [
        Panel("by logit", "first direction", "second direction", by_logit),
        Panel("by class", "first direction", "second direction", by_class),
    ]


def _groups(points: Tensor, centers: Tensor, name: str) -> tuple[Curve, ...]:
    """``points: [groups, members, 2]``, a color for each group, and their centers."""
    curves = [
        Curve.of(f"{name} {i}", members[:, 0], members[:, 1], kind="points", color=i % GRAY)
        for i, members in enumerate(points)
    ]
    curves.append(Curve.of("centers", centers[:, 0], centers[:, 1], kind="points", color=GRAY))
    return tuple(curves)


@_panels.register
def _(result: Attribution) -> list[Panel]:
    return [structure.attribution(result)]


@_panels.register
def _(result: ClassTraces) -> list[Panel]:
    parts = ("class", "cross", "diagonal", "within")
    values = (result.class_part, result.cross, result.diagonal, result.within)
    curves = [
        Curve.of(f"{part} part", None, each, kind="points", color=structure.PARTS[part])
        for part, each in zip(parts, values, strict=True)
    ]
    curves.append(Curve.of("all", None, result.total, color=GRAY))
    return [Panel("traces of each class", "class", "trace", tuple(curves))]


@_panels.register
def _(result: LayerApproximation) -> list[Panel]:
    named = {"G": result.exact, "KFAC": result.kfac, "CFAC": result.cfac}
    return [_overlaid(result.name, named)]


@_panels.register
def _(result: LogitClusters) -> list[Panel]:
    named = {"by weight": result.weight, "by output": result.output}
    return [
        replace(panel, title=f"{words}, {panel.title}")
        for words, clusters in named.items()
        for panel in _panels(clusters)
    ]


@_panels.register
def _(result: Knockouts) -> list[Panel]:
    return [
        _overlaid(f"without the {part} part, by {how}", {"G": result.whole, "rest": spectrum})
        for (part, how), spectrum in result.without.items()
    ]


@_panels.register
def _(result: HessianSplit) -> list[Panel]:
    named = {"H": result.hessian, "G": result.gauss_newton, "E": result.residual}
    return [_overlaid("H = G + E", named)]


def _overlaid(title: str, named: Mapping[str, SpectralMeasure | ExactSpectrum]) -> Panel:
    curves = [
        _density(name, s.density() if isinstance(s, SpectralMeasure) else s)
        for name, s in named.items()
    ]
    return replace(_density_panel(curves), title=title)


@_panels.register
def _(result: MomentStatistics) -> list[Panel]:
    return [structure.moment("", result.total, result.class_part)]


@_panels.register
def _(result: LayerStatistics) -> list[Panel]:
    features, errors = result.features, result.errors
    return [
        structure.moment(f"{result.name}: features", features.total, features.class_part),
        structure.moment(
            f"{result.name}: errors", errors.total, errors.class_part, errors.class_and_cross
        ),
    ]


# Sharpness and certificates -------------------------------------------------------------------


@_panels.register
def _(result: Comparison) -> list[Panel]:
    return list(against_generalization(result).panels)


@_panels.register
def _(result: DegeneracyHistory) -> list[Panel]:
    at = [point.epoch for point in result.points]
    curves = []
    for matrix in ("hessian", "gauss_newton"):
        masses = [getattr(point, matrix) for point in result.points]
        pair = [mass.pair.value for mass in masses]
        curves.append(Curve.of(f"{matrix.replace('_', '–')}, nearest two", at, pair))
    ends = [at[0], at[-1]]
    curves.append(Curve.of("bound", ends, [result.predicted] * 2, color=GRAY, dash="dashed"))
    return [Panel("", "epoch", "mass at zero", tuple(curves))]


@_panels.register
def _(result: SubsamplingStudy) -> list[Panel]:
    sizes = [each.size for each in result.subsamples]
    rows = (("trace", "tr", "trace"), ("square_sum", "tr of the square", "square_sum"))
    panels = []
    for field, label, whole in rows:
        values = [getattr(each, field) for each in result.subsamples]
        middle = torch.tensor([v.value for v in values])
        error = torch.tensor([v.stderr for v in values])
        curve = Curve.of("sub-samples", sizes, middle, low=middle - error, high=middle + error)
        level = getattr(result, whole).value
        ends = [sizes[0], sizes[-1]]
        everything = Curve.of("all samples", ends, [level] * 2, color=GRAY, dash="dashed")
        panels.append(Panel(label, "samples", label, (curve, everything), xscale="log"))
    return panels


@_panels.register
def _(result: Certificate) -> list[Panel]:
    epochs = [point.epoch for point in result.history]
    panels = []
    for part, label in (("bound", "bound"), ("error", "error"), ("kl", "KL(Q‖P)")):
        values = [getattr(point, part) for point in result.history]
        curves = [Curve.of("estimate on the way", epochs, values)]
        if part == "bound" and epochs:
            curves.append(Curve.of("certified", epochs[-1:], [result.bound], kind="points"))
        scale: Scaling = "log" if part == "kl" and min(values, default=0) > 0 else "linear"
        panels.append(Panel(label, "epoch", label, tuple(curves), yscale=scale))
    if result.posterior is not None:
        profiles = [variance_profile(result.posterior, block.name) for block in result.layout]
        panels += [panel for profile in profiles for panel in _panels(profile)]
    return panels


@_panels.register
def _(result: Profile) -> list[Panel]:
    curve = Curve.of("posterior variance", result.place, result.variance)
    return [
        Panel(
            result.layer, "place by falling eigenvalue", "posterior variance", (curve,),
            xscale="log", yscale="log",
        )
    ]  # fmt: skip


Builder = Callable[[Any], list[Panel]]


def register(kind: type, builder: Builder) -> None:
    """Let :func:`picture` draw another type of result.

    >>> register(complex, lambda z: [Panel("z", curves=(Curve.of("z", [z.real], [z.imag]),))])
    >>> picture(1 + 2j).panels[0].curves[0].x
    (1.0,)
    """
    _panels.register(kind)(builder)
