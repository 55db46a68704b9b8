"""TR fig. 1, fig. 2 and table 1: the features of a typical spectrum, and what each is due to.

The paper draws a sketch with C = 4 classes and a table of conclusions. Here a perceptron on four
digits is small enough that all spectra are exact: the features can be counted, and every part can
be knocked out of every quantity.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from curvescope.data import Dataset
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.spectra.exact import ExactSpectrum
from curvescope.structure.class_factors import layer_approximations
from curvescope.structure.knockouts import ClassDual, class_dual
from curvescope.structure.layers import LayerStatistics, layer_statistics
from curvescope.structure.outliers import Attribution, outliers_of
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects

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
Left = dict[str, dict[str, float]]
"""How much of each feature is left without each part: ``left[feature][part]``."""


def run(settings: Settings) -> Outcome:
    """Train, take everything apart exactly."""
    network = settings.pick(smoke="F-24^2", small="F-128^3", paper="F-2048^7")
    data = _four(settings, settings.pick(smoke=8, small=60, paper=250))
    plan = subjects.recipe(
        settings.pick(smoke=60, small=150, paper=350),
        settings.pick(smoke=0.1, small=0.05, paper=0.02),
    )
    subject = subjects.train_one(settings, "traces-anatomy", network, data, plan)
    loss, error = subjects.fit(subject, data)
    problem = subjects.problem(subject, data)
    settings.tell("the spectrum of G and its knockouts")
    dual = class_dual(problem)
    few = len(dual.gram) <= 1024
    attribution = outliers_of(dual, generator=None if few else settings.generator(1))
    left = knockouts(dual)
    settings.tell("features, errors, weights, Hessian")
    layers = list(layer_statistics(problem).values())
    rows = [
        *_features(dual, attribution),
        *_gradients(left),
        *_hessian(settings, problem),
        *_layers(layers),
        *_means(settings, problem),
    ]
    numbers = {
        "left": left,
        "attribution": subjects.attribution_numbers(attribution),
        "loss": loss,
        "error": error,
    }
    notes = (
        f"{network} on {len(data):,} images of the digits 0 to 3, trained as in App. D: training "
        f"loss {loss:.2g}, error {error:.1%}. All spectra are exact but the ends of that of E.",
        "Table 1 says to which part a feature of a spectrum is due. A row here is what is left of "
        "the feature without that part, and its criterion that no other part takes more of it, or, "
        "where there are two parts, that less than half is left; both are ours.",
        "C outliers: the C largest eigenvalues. C² outliers: the next up to C². Bulk: the rest.",
    )
    return Outcome(tuple(rows), (_sketch(dual.spectrum(), attribution),), numbers, notes)


def _four(settings: Settings, per_class: int) -> Dataset:
    """The first images of four digits."""
    whole = subjects.images(settings, "mnist", per_class)
    kept = whole.y < C
    return replace(whole, X=whole.X[kept], y=whole.y[kept], classes=C)


# Table 1 ----------------------------------------------------------------------------------------


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


def knockouts(dual: ClassDual) -> Left:
    """Subtract each part of G and see what is left of each feature."""
    whole = features_of(dual.spectrum().values.flip(0))
    gone = {part: features_of(dual.knocked_out(part).values.flip(0)) for part in PARTS}
    return {name: {part: gone[part][name] / whole[name] for part in PARTS} for name in COLUMNS}


def _gradients(found: Left) -> list[Row]:
    rows = []
    for feature, part in COLUMNS.items():
        own = found[feature]
        least = min(value for name, value in own.items() if name != part)
        others = ", ".join(f"{name} {value:.3g}" for name, value in own.items() if name != part)
        rows.append(
            Row(f"gradients: {feature} of G left without the {part} part", own[part], high=least,
                note=f"table 1: due to G_{part}; without others: {others}")
        )  # fmt: skip
    return rows


def _hessian(settings: Settings, problem: Problem) -> list[Row]:
    """The Hessian's outliers are G's, its bulk E's."""
    H, G = Hessian(problem, keep=True), GaussNewton(problem, keep=True)
    k = C + 1
    g = settings.generator(2)
    top = eigenpairs(H, k, tol=1e-3, generator=g).values[:C].double()
    rest = eigenpairs(H - G, 1, tol=1e-2, generator=g).values[0].double()
    own = eigenpairs(G, k, tol=1e-3, generator=g).values[:C].double()
    return [
        Row("Hessian: largest eigenvalue without G over the C-th with it", float(rest / top[-1]),
            high=1.0, note="table 1: the C outliers are due to G"),
        Row("Hessian: C largest without E over with it, mean", float((own / top).mean()), paper=1.0,
            low=0.8, high=1.2, note="the outliers stay without E; range ours"),
    ]  # fmt: skip


def _layers(layers: list[LayerStatistics]) -> list[Row]:
    """Features and errors of the last hidden layer, and its weights."""
    own = layers[-2]

    def left(values: Tensor, whole: Tensor, *, first: int = 0, last: int = C) -> float:
        return float(values[first:last].sum() / whole[first:last].sum())

    bulk = own.errors.without_class
    return [
        Row("features: C outliers left without the class means",
            left(own.features.without_class, own.features.total), high=0.5,
            note="table 1: due to H_class; the last hidden layer"),
        Row("errors: C outliers left without the class means",
            left(own.errors.without_class, own.errors.total), high=0.5,
            note="table 1: due to Δ_class"),
        Row("errors: C² largest of the rest left without the cross means",
            left(own.errors.without_cross, bulk, last=C * (C - 1)), high=0.5,
            note="table 1: due to Δ_cross"),
        Row("weights: C outliers left without W_class, over what is left of the next C",
            left(own.weights.without_class, own.weights.total)
            / left(own.weights.without_class, own.weights.total, first=C, last=2 * C), high=1.0,
            note="table 1: due to W_class"),
    ]  # fmt: skip


# Fig. 1 and 2 -----------------------------------------------------------------------------------


def _features(dual: ClassDual, found: Attribution) -> list[Row]:
    """One outlier, C − 1, a mini-bulk, a bulk: in this order, and so many."""
    within = dual.knocked_out(("class", "cross", "diagonal")).values
    middles = {"within": float(within[within > 1e-12 * within[-1]].median())}
    for name in ("class", "cross"):
        X = dual.bases[name]
        middles[name] = float(torch.linalg.eigvalsh(X.T @ dual.gram @ X).median())
    counts = {group.name: group for group in found.groups}
    top = found.values
    return [
        Row("fig. 1: λ₁ over λ₂", float(top[0] / top[1]), low=1.5,
            note="“one isolated outlier on the far right”; range ours"),
        Row("fig. 1: median eigenvalue of the class part over that of the cross part",
            middles["class"] / middles["cross"], low=1.0, note="the outliers lie to the right"),
        Row("fig. 1: median eigenvalue of the cross part over that of the within part",
            middles["cross"] / middles["within"], low=1.0,
            note="the mini-bulk lies between outliers and bulk"),
        *(
            Row(f"fig. 1: outliers made by the {name} part", counts[name].outliers,
                paper=counts[name].expected)
            for name in ("global", "class", "cross")
        ),
    ]  # fmt: skip


def _means(settings: Settings, problem: Problem) -> list[Row]:
    """Fig. 2: means of features times means of errors are means of gradients."""
    layers = list(layer_approximations(problem, generator=settings.generator(3), steps=24).values())
    rows = []
    for name in ("class", "cross"):
        cosines = [float(getattr(layer, f"{name}_cosines").nanmean()) for layer in layers]
        rows.append(
            Row(f"fig. 2: cosine of the {name} means of gradients and the products, last layer",
                cosines[-1], paper=1.0, low=0.9,
                note=f"range ours; all layers: {', '.join(f'{x:.2f}' for x in cosines)}")
        )  # fmt: skip
    return rows


def _sketch(spectrum: ExactSpectrum, found: Attribution, most: int = 60) -> Picture:
    edges = subjects.decades({"G": spectrum}, floor=1e-8)
    whole = subjects.log_panel(
        "all eigenvalues", (subjects.histogram("", spectrum, edges, floor=1e-8, color=6),)
    )
    makers, values = found.maker[:most], found.values[:most]
    curves = []
    for i, (name, label) in enumerate(NAMES.items()):
        chosen = [k for k, maker in enumerate(makers) if maker == name]
        if chosen:
            places = [k + 1 for k in chosen]
            curves.append(Curve.of(label, places, values[chosen], kind="points", color=i))
    largest = Panel(
        title="the largest, by what makes most of each",
        xlabel="index",
        ylabel="eigenvalue of G",
        curves=tuple(curves),
        yscale="log",
    )
    caption = (
        "The typical spectrum that TR fig. 1 sketches, measured: how many eigenvalues there are, "
        "and which part makes most of each of the largest. The sketch has one outlier of the "
        "global mean, C − 1 of the class means, a mini-bulk of C(C − 1) and a bulk."
    )
    return Picture("spectrum", caption, (whole, largest))


ENTRY = Entry(
    name="traces/anatomy",
    source="TR sec. 1: fig. 1, 2; table 1",
    shows="The features of a typical spectrum with C = 4 classes, and that each disappears with "
    "the part that it is due to.",
    cost={
        "smoke": "3 s, 32 embedded digits",
        "small": "1 minute, 240 digits of MNIST",
        "paper": "2048 units, 1,000 digits: a minute on a GPU; the paper has a sketch here",
    },
    run=run,
    subject={
        "smoke": "G of F-24^2 on four embedded digits",
        "small": "G of F-128^3 on four digits of mnist",
        "paper": "G of F-2048^7 on four digits of mnist",
    },
    reduced={
        "smoke": "network and data; the paper has a sketch and a table of words",
        "small": "nothing: the paper has a sketch and a table of words",
        "paper": "nothing: the paper has a sketch and a table of words",
    },
)
