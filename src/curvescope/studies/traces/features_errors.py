"""TR fig. 7–10 and 13: features, back-propagated errors and weights of a perceptron's layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from curvescope.figures.model import Picture
from curvescope.structure.layers import LayerStatistics, MomentStatistics, layer_statistics
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects
from curvescope.studies.traces.layer_pictures import layer_pictures
from curvescope.studies.traces.perceptron import DATA, SUBJECT, Perceptron, difference, perceptron

_CLASSES = 10
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
        pictures += layer_pictures(name, found.name, list(layers.values()))
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
        "layers and close again toward the end.",
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
                float(last.total[0]) / last.global_mean if last.global_mean else float("inf"),
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
                "global": m.global_mean,
                "largest": m.total[:20].tolist(),
                "class part": m.class_part.tolist(),
            }
            for what, m in (("features", layer.features), ("errors", layer.errors))
        }
    return {"training loss": found.loss, "training error": found.error, "layers": listed}


def _checks(outcome: Outcome) -> Iterator[Row]:
    """TR's sentences about fig. 7 to 10 and 13 for each data set."""
    for data in outcome.numbers:
        for what in ("features", "errors"):
            (count,) = outcome.values(f"{data}, {what}: outliers in the last layer")
            yield Row(f"{data}, {what}: outliers in the last layer are C", count, paper=_CLASSES,
                      low=_CLASSES, high=_CLASSES, note="“bulk and C outliers”")  # fmt: skip
        (left,) = outcome.values(f"{data}, errors: C² largest without class means")
        yield Row(f"{data}, errors of layer 7: C² largest shrink without cross means", left,
                  high=0.5, note="“the emergence of the C² outliers”; range ours")  # fmt: skip
        moved = outcome.values(f"{data}, weights of ")[0]
        yield Row(f"{data}, weights of the last hidden layer: C largest shrink", moved, high=0.8,
                  note="“C outliers, attributable to W_class”; range ours")  # fmt: skip


ENTRY = Entry(
    name="traces/features-errors",
    source="TR sec. 7.4–7.9, 7.13: fig. 7, 8, 9, 10, 13",
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
    subject=SUBJECT,
    reduced={
        "smoke": "32 units instead of 2048, embedded images, without CIFAR-10",
        "small": (
            "256 units instead of 2048, 300 images per class, 40 epochs, one learning rate instead "
            "of a sweep; without CIFAR-10"
        ),
        "paper": (
            "one learning rate and one sample size, 1,351 per class, instead of a sweep; without "
            "CIFAR-10 and without batch norm"
        ),
    },
    checks=_checks,
)
