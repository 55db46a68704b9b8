"""KFAC and CFAC beside the exact block of every layer (Papyan 2020, fig. 11, 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple

from torch import Tensor

from curvescope.figures.model import Panel, Picture
from curvescope.problem import Problem
from curvescope.structure.class_factors import LayerApproximation, layer_approximations
from curvescope.structure.network_factors import mean_cosines
from curvescope.studies.papyan2020.subjects import carriers, chosen, log_densities
from curvescope.studies.run import Result, Run, Value

MEASURES = ("outliers", "frobenius", "distance")


def run(run: Run) -> Result:
    """All layers of the chosen network on each data set, on balanced subsets."""
    values: dict[str, float | Value] = {}
    numbers: dict[str, object] = {}
    pictures: list[Picture] = []
    for data, images in run["data"].items():
        best = chosen(run, "mlp", data=images)
        values |= best.values(f"{data}: ")
        *fewer, most = run["curvature_per_class"]
        for each in (*fewer, most):
            few = best.data.per_class(each)
            problem = Problem(best.model, few.batches(500))
            run.tell(f"{data}: G, KFAC and CFAC of all layers, {each} per class")
            layers = layer_approximations(
                problem, generator=run.generator(3), limit=run["limit"], steps=run["steps"]
            )
            own = list(layers.values())
            if each != most:
                values |= _counts(f"{data}, G of {each} per class", own)
                continue
            values |= _counts(data, own) | _last_layer(data, own)
            values[f"{data}: samples of {len(few)} that carry half of tr G"] = carriers(problem)
            values |= _network(data, problem)
            numbers[data] = {name: _numbers(layer) for name, layer in layers.items()}
            pictures += _pictures(data, own, first=not pictures)
    return Result(values, tuple(pictures), numbers)


def _counts(data: str, layers: Sequence[LayerApproximation]) -> dict[str, float | Value]:
    """In how many layers CFAC is nearer to G than KFAC, of all and of the deeper half."""
    values: dict[str, float | Value] = {}
    deep = len(layers) // 2
    for what in MEASURES:
        better = [getattr(x.cfac_error, what) < getattr(x.kfac_error, what) for x in layers]
        worse = ", ".join(x.name for x, good in zip(layers, better, strict=True) if not good)
        values[f"{data}: layers of {len(layers)} where CFAC is nearer to G, {what}"] = Value(
            sum(better), f"not in {worse}" if worse else ""
        )
        values[f"{data}: of the {deep} deepest, {what}"] = sum(better[-deep:])
    return values


def _last_layer(data: str, layers: Sequence[LayerApproximation]) -> dict[str, float | Value]:
    last = layers[-1]
    values: dict[str, float | Value] = {
        f"{data}, last layer: outliers of CFAC over KFAC's misalignment": last.cfac_error.outliers
        / last.kfac_error.outliers,
        f"{data}, last layer: relative error ‖G − CFAC‖/‖G‖": Value(
            last.cfac_error.frobenius, f"KFAC: {last.kfac_error.frobenius:.3f}"
        ),
    }
    for name, cosines in (("c", [x.class_cosines for x in layers]),
                          ("cc'", [_off_diagonal(x.cross_cosines) for x in layers])):  # fmt: skip
        means = [float(each.nanmean()) for each in cosines]
        values[f"{data}, last layer: cosine of g_{name} and δ_{name} ⊗ h_c, mean"] = Value(
            means[-1], "all layers: " + ", ".join(f"{mean:.2f}" for mean in means)
        )
    return values


def _network(data: str, problem: Problem) -> dict[str, float | Value]:
    """Means of all layers together as Khatri–Rao products."""
    cosines = mean_cosines(problem)
    return {
        f"{data}, all layers: cosine of g_c and δ_c ⊙ h_c, mean": float(cosines.classes.nanmean()),
        f"{data}, all layers: cosine of g_cc' and δ_cc' ⊙ h_c, mean": float(
            _off_diagonal(cosines.cross).nanmean()
        ),
    }


def _off_diagonal(cosines: Tensor) -> Tensor:
    """Over pairs of different classes."""
    return cosines.clone().fill_diagonal_(float("nan"))


def _numbers(layer: LayerApproximation) -> Mapping[str, float]:
    return {
        **dict(zip((f"KFAC {name}" for name in ("distance", "outliers", "frobenius")),
                   astuple(layer.kfac_error), strict=True)),
        **dict(zip((f"CFAC {name}" for name in ("distance", "outliers", "frobenius")),
                   astuple(layer.cfac_error), strict=True)),
        "class cosine": float(layer.class_cosines.nanmean()),
        "cross cosine": float(_off_diagonal(layer.cross_cosines).nanmean()),
    }  # fmt: skip


def _pictures(data: str, layers: Sequence[LayerApproximation], *, first: bool) -> list[Picture]:
    """Fig. 11: the last layer; fig. 12: all layers, with KFAC on the left and CFAC on the right."""
    caption = "G beside KFAC and beside CFAC: eigenvalues per decade, ε = 1e-5"
    pictures = []
    if first:
        panels = _pair(layers[-1])
        pictures.append(Picture("last-layer", f"{data}, last layer: {caption} (fig. 11).", panels))
    panels = tuple(panel for layer in layers for panel in _pair(layer))
    pictures.append(Picture(f"{data}-layers", f"{data}: {caption} (fig. 12).", panels, 4))
    return pictures


def _pair(layer: LayerApproximation) -> tuple[Panel, ...]:
    colors = {"G": 6, "KFAC": 1, "CFAC": 0}
    both = ({"G": layer.exact, "KFAC": layer.kfac}, {"G": layer.exact, "CFAC": layer.cfac})
    return tuple(log_densities(layer.name, spectra, colors=colors) for spectra in both)
