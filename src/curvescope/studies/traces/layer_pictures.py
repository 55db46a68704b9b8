"""Pictures of features, errors and weights, layer by layer, as TR fig. 7 to 10 and 13 have them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.structure.layers import LayerStatistics, MomentStatistics

MOST = {"moments": 750, "weights": 150}
"""Eigenvalues and singular values that the paper shows."""
GONE = "nothing is left\nonce they are\nknocked out"
"""In the last layer class means span all errors, and W_class all of W's rows."""
Pairs = Sequence[tuple[Tensor, Tensor]]
_ABSURD = 1e12
_ROUNDING = 1e-25


def layer_pictures(data: str, network: str, layers: list[LayerStatistics]) -> list[Picture]:
    """Measures against depth, scatters and scree plots of all layers."""
    C, most = layers[0].classes, MOST["moments"]

    def grid(name: str, caption: str, panels: list[Panel]) -> Picture:
        named = f"{data}, {network}"
        return Picture(f"{data}-{name}", f"{data}: {caption}", tuple(panels), 4, named)

    def scatter(name: str, caption: str, axes: tuple[str, str], pairs: Pairs) -> Picture:
        first = ("C²", C * C) if name == "errors-cross" else ("C", C)
        shown = MOST["weights"] if name.startswith("weights") else most
        panels = [
            _scatter(layer.name, axes, (x[:shown], y[:shown]), first)
            for layer, (x, y) in zip(layers, pairs, strict=True)
        ]
        return grid(name, caption, panels)

    return [
        _measures(data, network, layers),
        scatter("features-scatter", "eigenvalues of H against those without class means (fig. 7).",
                ("eigenvalue without class means", "eigenvalue of H"),
                [(x.features.without_class, x.features.total) for x in layers]),
        grid("features-scree", "spectra of H and of its class part (fig. 8); lines: whiskers.",
             [_scree(x.name, x.features) for x in layers]),
        scatter("errors-scatter", "eigenvalues of Δ against those without class means (fig. 9a).",
                ("eigenvalue without class means", "eigenvalue of Δ"),
                [(x.errors.without_class, x.errors.total) for x in layers]),
        scatter("errors-cross", "Δ without class means, against without cross means too (fig. 9b).",
                ("eigenvalue without cross means too", "without class means"),
                [(x.errors.without_cross, x.errors.without_class) for x in layers]),
        grid("errors-scree", "spectra of Δ, of its class part, and with the cross part (fig. 10).",
             [_scree(x.name, x.errors) for x in layers]),
        scatter("weights-scatter", "singular values of W against those without W_class (fig. 13).",
                ("singular value without W_class", "singular value of W"),
                [(x.weights.without_class, x.weights.total) for x in layers]),
    ]  # fmt: skip


def _measures(data: str, network: str, layers: list[LayerStatistics]) -> Picture:
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
        panels.append(Panel(xlabel="layer", ylabel=title, curves=tuple(curves), yscale="log"))
    caption = f"{data}: separation and whitening of class means, layer by layer (sec. 7.6, 7.9)."
    return Picture(f"{data}-measures", caption, tuple(panels), title=f"{data}, {network}")


def _scatter(
    title: str, axes: tuple[str, str], pair: tuple[Tensor, Tensor], first: tuple[str, int]
) -> Panel:
    """The i-th values of two spectra against each other; those on the diagonal did not move.

    ``first``: what the largest are called, and how many they are.
    """
    (x, y), (name, C) = pair, first
    floor = 1e-14 * float(y[0])
    alive = (x > floor) & (y > floor)
    top, rest = alive.clone(), alive.clone()
    top[C:], rest[:C] = False, False
    thin = rest.nonzero()[:: max(1, int(rest.sum()) // 150), 0]
    both = torch.cat([x[alive], y[alive]])
    if not len(both) or float(y[0]) <= _ROUNDING:
        return Panel(title=title, xlabel=axes[0], ylabel=axes[1], note=GONE)
    ends = [float(both.min()), float(both.max())]
    curves = (
        Curve.of(f"the {name} largest", x[top], y[top], kind="points", color=0),
        Curve.of("others", x[thin], y[thin], kind="points", color=1),
        Curve.of("not moved", ends, ends, color=6),
    )
    return Panel(title=title, xlabel=axes[0], ylabel=axes[1],
                 curves=tuple(curve for curve in curves if curve.y),
                 xscale="log", yscale="log")  # fmt: skip


def _scree(title: str, moment: MomentStatistics, most: int = 110) -> Panel:
    floor = 1e-12 * float(moment.total[0])
    curves = []
    for label, values, color in (
        ("all", moment.total, 0),
        ("class and cross part", moment.class_and_cross, 6),
        ("class part", moment.class_part, 1),
    ):
        kept = values[values > floor][:most]
        if len(kept) and (label != "class and cross part" or len(moment.diagonal)):
            kind = "line" if label == "all" else "points"
            curves.append(Curve.of(label, None, kept, kind=kind, color=color))  # type: ignore[arg-type]
    for side in moment.whiskers:
        if side > 0:
            curves.append(Curve.of("whiskers", [1, most], [side, side], color=2))
    return Panel(title=title, xlabel="index", ylabel="eigenvalue", curves=tuple(curves),
                 yscale="log")  # fmt: skip
