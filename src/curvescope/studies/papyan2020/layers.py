"""Features, errors and weights of a perceptron's layers (Papyan 2020, fig. 7 to 10 and 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.problem import Problem
from curvescope.structure.layers import LayerStatistics, MomentStatistics, layer_statistics
from curvescope.studies.papyan2020.subjects import Chosen, chosen
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run, Value

MOST = {"moments": 750, "weights": 150}  # eigenvalues and singular values that the paper shows
Pairs = Sequence[tuple[Tensor, Tensor]]
_ABSURD = 1e12
_ROUNDING = 1e-25
_GONE = "nothing is left\nonce they are\nknocked out"


def run(run: Run) -> Result:
    """All layers of the chosen network on each data set."""
    values: dict[str, float | Value] = {}
    numbers: dict[str, object] = {}
    statistics: dict[str, list[LayerStatistics]] = {}
    for data, images in run["data"].items():
        best = chosen(run, "mlp", data=images)
        run.tell(f"{data}: moments of all layers")
        layers = layer_statistics(Problem(best.model, best.data.batches(500)))
        statistics[data] = list(layers.values())
        values |= best.values(f"{data}: ") | _values(data, statistics[data])
        weights = class_weights(best)
        values[f"{data}: largest over smallest w_c"] = float(weights.max() / weights.min())
        numbers[data] = {name: _numbers(layer) for name, layer in layers.items()}
    pictures = [_measures(statistics)]
    for data, own in statistics.items():
        pictures += _details(data, own)
    return Result(values, tuple(pictures), numbers)


def _values(data: str, layers: Sequence[LayerStatistics]) -> dict[str, float | Value]:
    C = layers[0].classes
    values: dict[str, float | Value] = {}
    for what in ("features", "errors"):
        moments: list[MomentStatistics] = [getattr(layer, what) for layer in layers]
        first, before, last = moments[0], moments[-2], moments[-1]
        # Errors of the last layer are p − e_c', which class means span: nothing is left as a bulk.
        deep = last if what == "features" else before
        place = "last" if deep is last else "last but one"
        counts = ", ".join(str(moment.outliers) for moment in moments)
        values |= {
            f"{data}, {what}: outliers in the {place} layer": Value(
                deep.outliers, f"all layers: {counts}"
            ),
            f"{data}, {what}: separation, {place} layer over first": deep.separation
            / first.separation,
            f"{data}, {what}: whiskers, last layer over first": last.whitening / first.whitening,
        }
        if last.global_mean:
            top = float(last.total[0]) / last.global_mean
            values[f"{data}, {what}: λ₁ of the last layer over its global mean's"] = top
    values[f"{data}, errors: outliers in the last layer"] = layers[-1].errors.outliers
    errors = layers[-2].errors
    values[
        f"{data}, errors of layer 7: C² largest without class means, cross means knocked out"
    ] = _left(errors.without_cross, errors.without_class, C * (C - 1))
    for layer in layers[-2:]:
        total, rest = layer.weights.total, layer.weights.without_class
        stays = float(rest[C : 2 * C].mean() / total[C : 2 * C].mean()) if len(total) > C else 1.0
        values[f"{data}, weights of {layer.name}: C largest without W_class over with"] = Value(
            _left(rest, total, C), f"the next ones: {stays:.3f}"
        )
    return values


def _left(left: Tensor, whole: Tensor, most: int) -> float:
    return float(left[:most].mean() / whole[:most].mean())


@torch.no_grad()
def class_weights(best: Chosen) -> Tensor:
    """``w_c = Σ_{i ∈ c} (1 − p_ic) / N: [C]``, the weights of the errors' class means (sec. 7.7).

    The eigenvalues of the errors' class part are alike only where these are.
    """
    data = best.data
    p = torch.softmax(best.model(data.X).double(), 1)
    right = torch.nn.functional.one_hot(data.y, data.classes).bool()
    wrong = p.masked_fill(right, 0.0).sum(1)  # from the other probabilities: 1 − p would cancel
    return torch.zeros_like(p[0]).index_add_(0, data.y, wrong) / len(data)


def _numbers(layer: LayerStatistics) -> Mapping[str, object]:
    return {
        what: {
            "outliers": m.outliers,
            "separation": m.separation,
            "whiskers": m.whiskers,
            "global": m.global_mean,
            "largest": m.total[:20].tolist(),
            "class part": m.class_part.tolist(),
        }
        for what, m in (("features", layer.features), ("errors", layer.errors))
    }


# Pictures ----------------------------------------------------------------------------------------


def _measures(statistics: Mapping[str, Sequence[LayerStatistics]]) -> Picture:
    """Separation and whitening against depth, all data sets."""
    panels = []
    for what in ("features", "errors"):
        for title, name in (("separation", "separation"), ("ratio of the whiskers", "whitening")):
            shown = {}
            for data, layers in statistics.items():
                pairs = [(i + 1.0, float(getattr(getattr(layer, what), name)))
                         for i, layer in enumerate(layers)]  # fmt: skip
                # Where nothing is left as a bulk, as for the last layer's errors, is no ratio.
                alive = [(i, v) for i, v in pairs if 0 < v < _ABSURD]
                shown[data] = ([i for i, _ in alive], [v for _, v in alive])
            panels.append(curves(what, "layer", title, shown, yscale="log"))
    caption = "Separation and whitening of class means, layer by layer (sec. 7.6, 7.9)."
    return Picture("measures", caption, tuple(panels))


def _details(data: str, layers: Sequence[LayerStatistics]) -> list[Picture]:
    """Scatters and scree plots of all layers."""
    C = layers[0].classes
    most, some = MOST["moments"], MOST["weights"]

    def grid(name: str, caption: str, panels: list[Panel]) -> Picture:
        return Picture(f"{data}-{name}", f"{data}: {caption}", tuple(panels), 4)

    def scatters(
        axes: tuple[str, str], shown: int, first: tuple[str, int], pairs: Pairs
    ) -> list[Panel]:
        return [
            _scatter(layer.name, axes, (x[:shown], y[:shown]), first)
            for layer, (x, y) in zip(layers, pairs, strict=True)
        ]

    top = ("C", C)
    return [
        grid("features-scatter", "eigenvalues of H against those without class means (fig. 7).",
             scatters(("eigenvalue without class means", "eigenvalue of H"), most, top,
                      [(x.features.without_class, x.features.total) for x in layers])),
        grid("features-scree", "spectra of H and of its class part (fig. 8); lines: whiskers.",
             [_scree(x.name, x.features) for x in layers]),
        grid("errors-scatter", "eigenvalues of Δ against those without class means (fig. 9a).",
             scatters(("eigenvalue without class means", "eigenvalue of Δ"), most, top,
                      [(x.errors.without_class, x.errors.total) for x in layers])),
        grid("errors-cross", "Δ without class means, against without cross means too (fig. 9b).",
             scatters(("eigenvalue without cross means too", "without class means"), most,
                      ("C²", C * C),
                      [(x.errors.without_cross, x.errors.without_class) for x in layers])),
        grid("errors-scree", "spectra of Δ, of its class part, and with the cross part (fig. 10).",
             [_scree(x.name, x.errors) for x in layers]),
        grid("weights-scatter", "singular values of W against those without W_class (fig. 13).",
             scatters(("singular value without W_class", "singular value of W"), some, top,
                      [(x.weights.without_class, x.weights.total) for x in layers])),
    ]  # fmt: skip


def _scatter(
    title: str, axes: tuple[str, str], pair: tuple[Tensor, Tensor], first: tuple[str, int]
) -> Panel:
    """The i-th values of two spectra against each other; those on the diagonal did not move."""
    (x, y), (name, C) = pair, first
    floor = 1e-14 * float(y[0])
    alive = (x > floor) & (y > floor)
    top, rest = alive.clone(), alive.clone()
    top[C:], rest[:C] = False, False
    thin = rest.nonzero()[:: max(1, int(rest.sum()) // 150), 0]
    both = torch.cat([x[alive], y[alive]])
    if not len(both) or float(y[0]) <= _ROUNDING:
        return Panel(title=title, xlabel=axes[0], ylabel=axes[1], note=_GONE)
    ends = [float(both.min()), float(both.max())]
    shown = (
        Curve.of(f"the {name} largest", x[top], y[top], kind="points", color=0),
        Curve.of("others", x[thin], y[thin], kind="points", color=1),
        Curve.of("not moved", ends, ends, color=6),
    )
    kept = tuple(curve for curve in shown if curve.y)
    return Panel(title=title, xlabel=axes[0], ylabel=axes[1], curves=kept, xscale="log",
                 yscale="log")  # fmt: skip


def _scree(title: str, moment: MomentStatistics, most: int = 110) -> Panel:
    floor = max(1e-12, moment.rounding) * float(moment.total[0])
    shown = []
    for label, values, color in (
        ("all", moment.total, 0),
        ("class and cross part", moment.class_and_cross, 6),
        ("class part", moment.class_part, 1),
    ):
        kept = values[values > floor][:most]
        if len(kept) and (label != "class and cross part" or len(moment.diagonal)):
            kind = "line" if label == "all" else "points"
            shown.append(Curve.of(label, None, kept, kind=kind, color=color))  # type: ignore[arg-type]
    for side in moment.whiskers:
        if side > 0:
            shown.append(Curve.of("whiskers", [1, most], [side, side], color=2))
    return Panel(title=title, xlabel="index", ylabel="eigenvalue", curves=tuple(shown),
                 yscale="log")  # fmt: skip
