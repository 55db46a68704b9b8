"""TR fig. 7–10 and 13: features, back-propagated errors and weights of a perceptron's layers."""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.catalogue.entry import Entry, Outcome, Row, Settings
from curvescope.catalogue.pictures import Curve, Panel, Picture
from curvescope.catalogue.traces import subjects
from curvescope.catalogue.traces.perceptron import DATA, Perceptron, difference, perceptron
from curvescope.structure.layers import LayerStatistics, MomentStatistics, layer_statistics

MOST = {"moments": 750, "weights": 150}
"""Eigenvalues and singular values that the paper shows."""
_ABSURD = 1e12
_WHISKERS = {"features": "fashion-mnist", "errors": "mnist"}
"""The data whose whiskers the paper draws: the second row of fig. 8 and the first of fig. 10."""


def run(settings: Settings) -> Outcome:
    """All layers on each data set."""
    rows: list[Row] = []
    pictures: list[Picture] = []
    numbers: dict[str, object] = {}
    notes = [difference(settings), subjects.RANGES]
    for name in DATA:
        found = perceptron(settings, name)
        settings.tell(f"{name}: moments of all layers")
        layers = layer_statistics(subjects.problem(found.subject, found.data))
        rows += _rows(name, list(layers.values()))
        pictures += _pictures(name, list(layers.values()))
        weights = class_weights(found)
        numbers[name] = {**_numbers(found, layers), "class weights": weights.tolist()}
        notes.append(
            f"{found.note} The weights w_c of the errors' class means span a factor of "
            f"{float(weights.max() / weights.min()):.3g}."
        )
    notes += [
        "Outliers of a second moment are its eigenvalues above all that is left when the class "
        "means are projected out. Separation is the mean eigenvalue of the class part over that "
        "edge, whitening the ratio of the whiskers: second largest over smallest eigenvalue of the "
        "class part.",
        "Features of layer l are its inputs; those of the first layer are the images.",
        "The eigenvalues of the errors' class part Σ w_c δ_c δ_cᵀ are alike only if the classes "
        "are misjudged equally often: w_c is the probability of being wrong on class c. Where the "
        "weights differ, the ratio of the whiskers measures them and not the angles of the means. "
        "Seen with eight layers of 128 units on 60 digits per class, one seed: after 200 steps at "
        "the rate 0.02 the weights span a factor of 29, and the errors' whiskers are 24 in the "
        "first and 33 in the last layer; after 6,000 steps at 0.05 a factor of 1.9, and 33 and "
        "8.8; the same without weight decay 5.8, and 8.3 and 44. Without decay they do not close.",
        "The paper draws whiskers, and says that they close, for the features of the second data "
        "set (taken to be Fashion-MNIST) and for the errors of the first (MNIST): only those are "
        "judged. The features of MNIST begin white, as images; their whiskers open in the middle "
        "layers and close again towards the end.",
    ]
    return Outcome(tuple(rows), tuple(pictures), numbers, tuple(notes))


def _rows(data: str, layers: list[LayerStatistics]) -> list[Row]:
    C = layers[0].classes
    rows = []
    for what in ("features", "errors"):
        moments: list[MomentStatistics] = [getattr(layer, what) for layer in layers]
        first, last = moments[0], moments[-1]
        # Errors of the last layer are p − e_c', which class means span: nothing is left as a bulk.
        deep = last if what == "features" else moments[-2]
        known = "fig. 7, 8" if what == "features" else "fig. 9, 10"
        rows += [
            Row(f"{data}, {what}: outliers in the last layer", last.outliers, paper=C,
                note=f"{known}; in the first: {first.outliers}"),
            Row(f"{data}, {what}: separation, {'last' if deep is last else 'last but one'} layer "
                "over first", deep.separation / first.separation, low=1.0,
                note="“increasing separation”"),
            Row(f"{data}, {what}: whiskers, last layer over first",
                last.whitening / first.whitening,
                high=1.0 if _WHISKERS[what] == data else None, note="“the ratio decreases”"),
            Row(f"{data}, {what}: λ₁ of the last layer over its global mean's",
                float(last.total[0]) / last.global_ if last.global_ else float("inf"),
                note="the global mean causes the top outlier"),
        ]  # fmt: skip
    rows += [
        Row(f"{data}, errors: C² largest without class means, cross means knocked out over not",
            _ratio(layers[-2].errors.without_cross, layers[-2].errors.without_class, C * (C - 1)),
            note="fig. 9b, layer 7; never above 1"),
        *(_weight_row(data, layer, C) for layer in layers[-2:]),
    ]  # fmt: skip
    return rows


def _weight_row(data: str, layer: LayerStatistics, C: int) -> Row:
    """How far knocking W_class out moves the C largest singular values, beside the next C."""
    total, left = layer.weights.total, layer.weights.without_class
    moved = _ratio(left, total, C)
    stays = float(left[C : 2 * C].mean() / total[C : 2 * C].mean()) if len(total) > C else 1.0
    return Row(
        f"{data}, weights of {layer.name}: C largest singular values without W_class over with",
        moved, note=f"fig. 13; never above 1; the next ones: {stays:.3f}",
    )  # fmt: skip


def _ratio(left: Tensor, whole: Tensor, most: int) -> float:
    return float(left[:most].mean() / whole[:most].mean())


@torch.no_grad()
def class_weights(found: Perceptron) -> Tensor:
    """``w_c = Σ_{i ∈ c} (1 − p_ic) / N: [C]``, the weights of the errors' class means (TR 7.7)."""
    data = found.data
    p = torch.softmax(found.subject.model(data.X).double(), 1)
    right = torch.nn.functional.one_hot(data.y, data.classes).bool()
    wrong = p.masked_fill(right, 0.0).sum(1)  # from the other probabilities: 1 − p would cancel
    return torch.zeros_like(p[0]).index_add_(0, data.y, wrong) / len(data)


def _numbers(found: Perceptron, layers: dict[str, LayerStatistics]) -> dict[str, object]:
    listed = {}
    for name, layer in layers.items():
        listed[name] = {
            what: {
                "outliers": m.outliers,
                "separation": m.separation,
                "whitening": m.whitening,
                "whiskers": m.whiskers,
                "global": m.global_,
                "largest": m.total[:20].tolist(),
                "class part": m.class_.tolist(),
            }
            for what, m in (("features", layer.features), ("errors", layer.errors))
        }
    return {"training loss": found.loss, "training error": found.error, "layers": listed}


# Pictures ---------------------------------------------------------------------------------------


def _pictures(data: str, layers: list[LayerStatistics]) -> list[Picture]:
    C, most = layers[0].classes, MOST["moments"]

    def grid(name: str, caption: str, panels: list[Panel]) -> Picture:
        return Picture(f"{data}-{name}", f"{data}: {caption}", tuple(panels), columns=4)

    return [
        _measures(data, layers),
        grid("features-scatter", "eigenvalues of H against those without class means (fig. 7).",
             [_scatter(x.name, x.features.without_class, x.features.total, C, most)
              for x in layers]),
        grid("features-scree", "spectra of H and of its class part (fig. 8); lines: whiskers.",
             [_scree(x.name, x.features) for x in layers]),
        grid("errors-scatter", "eigenvalues of Δ against those without class means (fig. 9a).",
             [_scatter(x.name, x.errors.without_class, x.errors.total, C, most) for x in layers]),
        grid("errors-cross", "Δ without class means, against without cross means too (fig. 9b).",
             [_scatter(x.name, x.errors.without_cross, x.errors.without_class, C * C, most)
              for x in layers]),
        grid("errors-scree", "spectra of Δ, of its class part, and with the cross part (fig. 10).",
             [_scree(x.name, x.errors) for x in layers]),
        grid("weights-scatter", "singular values of W against those without W_class (fig. 13).",
             [_scatter(x.name, x.weights.without_class, x.weights.total, C, MOST["weights"])
              for x in layers]),
    ]  # fmt: skip


def _measures(data: str, layers: list[LayerStatistics]) -> Picture:
    """Separation and whitening against depth."""
    panels = []
    for title, of in (("separation", "separation"), ("ratio of the whiskers", "whitening")):
        curves = []
        for what in ("features", "errors"):
            values = [float(getattr(getattr(layer, what), of)) for layer in layers]
            # Where nothing is left as a bulk, as for the last layer's errors, there is no ratio.
            kept = [(i + 1, v) for i, v in enumerate(values) if 0 < v < _ABSURD]
            if kept:
                curves.append(Curve.of(what, [i for i, _ in kept], [v for _, v in kept]))
        panels.append(Panel(title=title, xlabel="layer", curves=tuple(curves), yscale="log"))
    caption = f"{data}: separation and whitening of class means, layer by layer (sec. 7.6, 7.9)."
    return Picture(f"{data}-measures", caption, tuple(panels))


def _scatter(title: str, x: Tensor, y: Tensor, C: int, most: int) -> Panel:
    """The i-th values of two spectra against each other; those on the diagonal did not move."""
    x, y = x[:most], y[:most]
    floor = 1e-14 * float(y[0])
    alive = (x > floor) & (y > floor)
    first, rest = alive.clone(), alive.clone()
    first[C:], rest[:C] = False, False
    thin = rest.nonzero()[:: max(1, int(rest.sum()) // 150), 0]
    both = torch.cat([x[alive], y[alive]])
    ends = [float(both.min()), float(both.max())] if len(both) else [floor, 1.0]
    curves = (
        Curve.of("largest", x[first], y[first], kind="points", colour=0),
        Curve.of("others", x[thin], y[thin], kind="points", colour=1),
        Curve.of("", ends, ends, colour=6),
    )
    return Panel(title=title, xlabel="knocked out", ylabel="whole",
                 curves=tuple(curve for curve in curves if curve.y),
                 xscale="log", yscale="log")  # fmt: skip


def _scree(title: str, moment: MomentStatistics, most: int = 110) -> Panel:
    floor = 1e-12 * float(moment.total[0])
    curves = []
    for label, values, colour in (
        ("all", moment.total, 0),
        ("class and cross", moment.class_and_cross, 6),
        ("class", moment.class_, 1),
    ):
        kept = values[values > floor][:most]
        if len(kept) and (label != "class and cross" or len(moment.diagonal)):
            kind = "line" if label == "all" else "points"
            curves.append(Curve.of(label, None, kept, kind=kind, colour=colour))  # type: ignore[arg-type]
    for side in moment.whiskers:
        if side > 0:
            curves.append(Curve.of("", [1, most], [side, side], colour=2))
    return Panel(title=title, xlabel="index", ylabel="eigenvalue", curves=tuple(curves),
                 yscale="log")  # fmt: skip


ENTRY = Entry(
    name="traces/features-errors",
    source="TR fig. 7, 8, 9, 10, 13; sec. 7.4–7.9, 7.13",
    shows=(
        "C outliers of features and errors come from class means, separate from the bulk and "
        "become alike with depth; the same for weights."
    ),
    cost={
        "smoke": "4 s, embedded digits and garments, 32 units",
        "small": "2 minutes on two cores, 256 units, 300 images per class",
        "paper": "2048 units, 1,351 images per class, 350 epochs, a minute on an H200",
    },
    run=run,
)
