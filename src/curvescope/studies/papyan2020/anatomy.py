"""The features of a typical spectrum, and what each is due to (Papyan 2020, fig. 1, 2; table 1).

The paper draws a sketch with C = 4 classes and a table of conclusions. A perceptron on four digits
is small enough that all spectra are exact: the features can be counted, and every part can be
knocked out of every quantity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.class_factors import layer_approximations
from curvescope.structure.knockouts import ClassDual, class_dual
from curvescope.structure.layers import LayerStatistics, layer_statistics
from curvescope.structure.network_factors import mean_cosines, network_cfac, network_kfac
from curvescope.structure.outliers import Attribution, outliers_of
from curvescope.studies.papyan2020.subjects import carriers, chosen, log_densities
from curvescope.studies.run import Result, Run, Value

C = 4
"""Classes of the sketch."""
PARTS = ("class", "cross", "within")
COLUMNS = {"C outliers": "class", "C² outliers": "cross", "bulk": "within"}
"""Table 1: the features of the spectrum of G, and the part that each is due to."""
NAMES = {
    "global": "global mean: 1",
    "class": "class means: C − 1",
    "cross": "cross means: C(C − 1)",
    "diagonal": "c = c'",
    "within": "within: the bulk",
}


def run(run: Run) -> Result:
    """Train at every rate, take the best apart exactly."""
    best = chosen(run, "four-digits", classes=C)
    problem = Problem(best.model, best.data.batches(500))
    run.tell("the spectrum of G and its knockouts")
    dual = class_dual(problem)
    outliers = outliers_of(dual, generator=run.generator(1))
    left = knockouts(dual)
    run.tell("features, errors, weights, Hessian")
    values = {
        **best.values(),
        f"samples of {len(best.data)} that carry half of tr G": carriers(problem),
        **_spectrum(dual, outliers),
        **_gradients(left),
        **_hessian(run, problem),
        **_layers(list(layer_statistics(problem).values())),
        **_means(run, problem),
        **_factors(run, problem),
    }
    return Result(values, (_sketch(dual, outliers),), {"left": left})


# Table 1 -----------------------------------------------------------------------------------------


def features_of(values: Tensor) -> dict[str, float]:
    """The sums of the three features of a spectrum, largest first.

    >>> features_of(torch.ones(20))
    {'C outliers': 4.0, 'C² outliers': 12.0, 'bulk': 4.0}
    """
    return {
        "C outliers": float(values[:C].sum()),
        "C² outliers": float(values[C : C * C].sum()),
        "bulk": float(values[C * C :].sum()),
    }


def knockouts(dual: ClassDual) -> dict[str, dict[str, float]]:
    """How much of each feature is left without each part: ``left[feature][part]``."""
    whole = features_of(dual.spectrum().values.flip(0))
    gone = {part: features_of(dual.knocked_out(part).values.flip(0)) for part in PARTS}
    return {name: {part: gone[part][name] / whole[name] for part in PARTS} for name in COLUMNS}


def _gradients(left: Mapping[str, Mapping[str, float]]) -> dict[str, float | Value]:
    """What is left of a feature without its part, and that over the least without another one."""
    values: dict[str, float | Value] = {}
    for feature, part in COLUMNS.items():
        own = left[feature]
        others = {name: value for name, value in own.items() if name != part}
        note = "without " + ", ".join(f"{name} {value:.3g}" for name, value in others.items())
        values[f"gradients: {feature} of G left without the {part} part"] = Value(own[part], note)
        if feature != "bulk":  # nothing is left of it: G has the rank C² without the within part
            what = f"gradients: {feature}, left without the {part} part over without another"
            values[what] = own[part] / min(others.values())
    return values


def _hessian(run: Run, problem: Problem) -> dict[str, float | Value]:
    """The Hessian's outliers are G's, its bulk E's."""
    H, G = Hessian(problem, keep=True), GaussNewton(problem, keep=True)
    generator = run.generator(2)
    top = eigenpairs(H, C + 1, tol=1e-3, generator=generator).values[:C].double()
    rest = eigenpairs(H - G, 1, tol=1e-2, generator=generator).values[0].double()
    own = eigenpairs(G, C + 1, tol=1e-3, generator=generator).values[:C].double()
    return {
        "Hessian: largest eigenvalue without G over the C-th with it": float(rest / top[-1]),
        "Hessian: C largest without E over with it, mean": float((own / top).mean()),
    }


def _layers(layers: Sequence[LayerStatistics]) -> dict[str, float | Value]:
    """Features and errors of the last hidden layer, and its weights."""
    own = layers[-2]
    features, errors, weights = own.features, own.errors, own.weights

    def left(values: Tensor, whole: Tensor, first: int = 0, last: int = C) -> float:
        return float(values[first:last].sum() / whole[first:last].sum())

    return {
        "features: C outliers left without the class means": left(
            features.without_class, features.total
        ),
        "errors: C outliers left without the class means": left(errors.without_class, errors.total),
        "errors: C² largest of the rest left without the cross means": left(
            errors.without_cross, errors.without_class, last=C * (C - 1)
        ),
        "weights: C outliers left without W_class, over what is left of the next C": left(
            weights.without_class, weights.total
        )
        / left(weights.without_class, weights.total, C, 2 * C),
    }


# Fig. 1 and 2 ------------------------------------------------------------------------------------


def _spectrum(dual: ClassDual, outliers: Attribution) -> dict[str, float | Value]:
    """One outlier, C − 1, a mini-bulk, a bulk: in this order, and so many."""
    within = dual.knocked_out(("class", "cross", "diagonal")).values
    middle = {"within": float(within[within > 1e-12 * within[-1]].median())}
    for name in ("class", "cross"):
        X = dual.bases[name]
        middle[name] = float(torch.linalg.eigvalsh(X.T @ dual.gram @ X).median())
    values: dict[str, float | Value] = {
        "λ₁ over λ₂": float(outliers.values[0] / outliers.values[1]),
        "median eigenvalue of the class part over that of the cross part": middle["class"]
        / middle["cross"],
        "median eigenvalue of the cross part over that of the within part": middle["cross"]
        / middle["within"],
    }
    for group in outliers.groups:
        note = f"gone by subtraction: {group.subtracted}, by projection: {group.projected}"
        values[f"outliers made by the {group.name} part"] = Value(group.outliers, note)
    return values


def _means(run: Run, problem: Problem) -> dict[str, float | Value]:
    """Fig. 2: means of features times means of errors are means of gradients."""
    layers = layer_approximations(problem, generator=run.generator(3), steps=24).values()
    together = mean_cosines(problem)
    values: dict[str, float | Value] = {}
    for name, whole in (("class", together.classes), ("cross", together.cross)):
        means = [float(getattr(layer, f"{name}_cosines").nanmean()) for layer in layers]
        what = f"cosine of the {name} means of gradients and the products"
        listed = ", ".join(f"{mean:.2f}" for mean in means)
        values[f"{what}, last layer"] = Value(means[-1], f"all layers: {listed}")
        values[f"{what}, all layers together"] = float(whole.nanmean())
    return values


def _factors(run: Run, problem: Problem) -> dict[str, float | Value]:
    """KFAC and CFAC of the whole network, with the blocks between layers (def. 7.1, 7.2)."""
    weights = [name for name, p in problem.model.named_parameters() if p.ndim == 2]
    G = GaussNewton(problem.restrict(weights))
    tops = [
        eigenpairs(A, C, tol=1e-3, generator=run.generator(4)).values.double()
        for A in (G, network_kfac(problem), network_cfac(problem))
    ]
    what = "whole network: mean |ln λ − ln λ̂| of the C largest"
    return {
        f"{what}, {name}": float((tops[0] / other).log().abs().mean())
        for name, other in zip(("KFAC", "CFAC"), tops[1:], strict=True)
    }


def _sketch(dual: ClassDual, outliers: Attribution, most: int = 60) -> Picture:
    makers, top = outliers.maker[:most], outliers.values[:most]
    curves = []
    for i, (name, label) in enumerate(NAMES.items()):
        places = [k for k, maker in enumerate(makers) if maker == name]
        if places:
            index = [k + 1 for k in places]
            curves.append(Curve.of(label, index, top[places], kind="points", color=i))
    largest = Panel(
        title="the largest, by what makes most of each", xlabel="index",
        ylabel="eigenvalue of G", curves=tuple(curves), yscale="log",
    )  # fmt: skip
    caption = (
        "The typical spectrum that fig. 1 sketches, measured: the density of all eigenvalues, and "
        "which part makes most of each of the largest. The sketch has one outlier of the global "
        "mean, C − 1 of the class means, a mini-bulk of C(C − 1) and a bulk."
    )
    return Picture("spectrum", caption, (log_densities("all", {"G": dual.spectrum()}), largest))
