"""Pictures of outcomes of format 1, completed: labels, titles and scales that they lacked.

No number changes; curves that show nothing (a bound that is no bound, rounding) are left out, and a
comb of Lanczos nodes is shown as the number of eigenvalues above each place, from the same counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from curvescope.figures.model import Curve, Panel, Picture, above, rounded

Change = Callable[[Picture], Picture]


def completed(entry: str, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
    """The pictures of an outcome of format 1, as they would be drawn now.

    >>> curve = Curve.of("", None, [0.1, 0.2], low=[-0.1, 0.1], high=[0.3, 1.2])
    >>> old = Picture("p", "", (Panel(ylabel="overlap", curves=(curve,)),))
    >>> (new,) = completed("dissecting-hessian/overlap-width", (old,))
    >>> new.panels[0].curves[0].low, new.panels[0].curves[0].high
    ((0.0, 0.1), (0.3, 1.0))
    """
    common = [_panels(picture, _common) for picture in pictures]
    change = _CHANGES.get(entry)
    return tuple(common if change is None else map(change, common))


def _panels(picture: Picture, change: Callable[[Panel], Panel]) -> Picture:
    return replace(picture, panels=tuple(change(panel) for panel in picture.panels))


def _common(panel: Panel) -> Panel:
    """Bands of overlaps lie between 0 and 1; colours of heat maps and accuracies have a name."""
    if panel.image is not None and panel.ylabel.startswith("eigenvector of E"):
        return replace(panel, image=replace(panel.image, label="correspondence"))
    if not panel.ylabel and panel.title in ("test accuracy", "validation accuracy"):
        return replace(panel, title=f"{panel.title}, per cent")
    if panel.ylabel == "overlap":
        return replace(panel, curves=tuple(_within(curve) for curve in panel.curves))
    return panel


def _within(curve: Curve) -> Curve:
    if curve.low is None or curve.high is None:
        return curve
    low, high = (tuple(min(max(x, 0.0), 1.0) for x in side) for side in (curve.low, curve.high))
    return replace(curve, low=low, high=high)


# DH ---------------------------------------------------------------------------------------------


def _clusters(picture: Picture) -> Picture:
    def panel(old: Panel) -> Panel:
        *points, centres = old.curves
        named = [
            replace(curve, label=str(i), colour=i if i < 6 else i + 1)
            for i, curve in enumerate(points)
        ]
        return replace(
            old,
            xlabel="first t-SNE coordinate",
            ylabel="second t-SNE coordinate",
            curves=(*named, replace(centres, label="centres", colour=6)),
        )

    return _panels(picture, panel)


def _output_spaces(picture: Picture) -> Picture:
    def panel(old: Panel) -> Panel:
        curves = list(old.curves)
        for i in range(1, len(curves), 2):
            curves[i] = replace(curves[i], label=f"{curves[i - 1].label}, DH")
        return replace(old, curves=tuple(curves), xlabel="fully connected layer")

    return _panels(picture, panel)


def _deep(picture: Picture) -> Picture:
    """The caption says which network."""
    words = picture.caption.replace(",", " ").replace(":", " ").split()
    place = words.index("on")
    return replace(picture, title=" ".join(words[place - 1 : place + 2]))


def _table_9(picture: Picture) -> Picture:
    name = picture.caption.split(":")[0].split(",")[0]
    data = "mnist" if name.endswith("_10") else "mnist, 0–4 against 5–9"
    if picture.name != "variance":
        return replace(picture, title=f"{name} on {data}")
    shown = {curve.label for curve in picture.panels[0].curves}
    left = "" if "ITER(D)" in shown else " Not computed for this network: ITER(D)."
    return replace(picture, title=f"{name} on {data}, first layer", caption=picture.caption + left)


# TR ---------------------------------------------------------------------------------------------


def _spectra(picture: Picture) -> Picture:
    """Linear over the bulk, logarithmic over the outliers."""
    bulk = max(abs(x) for x in picture.panels[0].curves[0].x)

    def panel(old: Panel) -> Panel:
        if len(old.curves) < 2 and picture.name == "components":
            return old
        width = bulk if picture.name == "deflation" else max(abs(x) for x in old.curves[0].x)
        return replace(old, xscale="symlog", linear=rounded(width))

    return _panels(picture, panel)


_LAYERS = {
    "features-scatter": ("eigenvalue without class means", "eigenvalue of H"),
    "errors-scatter": ("eigenvalue without class means", "eigenvalue of Δ"),
    "errors-cross": ("eigenvalue without cross means too", "without class means"),
    "weights-scatter": ("singular value without W_class", "singular value of W"),
}
GONE = "nothing is left\nonce they are\nknocked out"


def _layers(picture: Picture) -> Picture:
    data, _, kind = picture.name.rpartition("mnist-")
    title = f"{'fashion-' if data else ''}mnist, eight-layer perceptron"
    found = replace(picture, title=title)
    if kind in _LAYERS:
        return _panels(found, lambda panel: _scatter(panel, kind))
    return _panels(found, _scree) if kind.endswith("scree") else found


def _scatter(old: Panel, kind: str) -> Panel:
    xlabel, ylabel = _LAYERS[kind]
    count = "C²" if kind == "errors-cross" else "C"
    labels = {"largest": f"the {count} largest", "others": "others", "": "not moved"}
    curves = tuple(replace(curve, label=labels[curve.label]) for curve in old.curves)
    points = [curve for curve in curves if curve.kind == "points"]
    rounding = max((y for curve in points for y in curve.y), default=0.0) < 1e-25
    named = replace(old, xlabel=xlabel, ylabel=ylabel, curves=curves)
    return replace(named, curves=(), note=GONE) if rounding else named


def _scree(old: Panel) -> Panel:
    labels = {"all": "all", "class": "class part", "class and cross": "class and cross part"}
    curves = tuple(replace(c, label=labels.get(c.label, "whiskers")) for c in old.curves)
    return replace(old, curves=curves)


def _above(picture: Picture) -> Picture:
    """How many eigenvalues lie above each place, from the counts between the places."""

    def panel(old: Panel) -> Panel:
        curves = tuple(replace(curve, y=above(curve.y)) for curve in old.curves)
        most = max(max(curve.y) for curve in curves)
        return replace(old, curves=curves, ylabel="eigenvalues above", ylim=(0.5, 3 * most))

    data = picture.name.removesuffix("-spectra")
    return _panels(replace(picture, title=f"{data}, eight-layer perceptron"), panel)


# FF ---------------------------------------------------------------------------------------------


def _degeneracy(picture: Picture) -> Picture:
    """A bound of 0 is no bound; the same curves look the same in both panels."""
    colours = {
        "G, nearest": 0,
        "H, nearest": 1,
        "H, two nearest": 2,
        "FF's rank bound, at least": 3,
    }
    names = {"G": "G, nearest", "rank bound": "FF's rank bound, at least"}

    def curve(old: Curve) -> Curve:
        label = names.get(old.label, old.label)
        return replace(old, label=label, colour=colours[label])

    def panel(old: Panel) -> Panel:
        kept = [c for c in old.curves if c.label != "rank bound" or max(c.y) > 0]
        if old.title not in ("where it sits", "mass at zero"):
            return old
        label = "|Ritz value| where it sits" if old.ylabel else old.title
        return replace(old, title="", ylabel=label, curves=tuple(curve(c) for c in kept))

    return _panels(picture, panel)


_CHANGES: dict[str, Change] = {
    "dissecting-hessian/clustering": _clusters,
    "dissecting-hessian/output-spaces": _output_spaces,
    "dissecting-hessian/overlap-vgg": _deep,
    "dissecting-hessian/overlap-resnet": _deep,
    "dissecting-hessian/table-9": _table_9,
    "traces/spectra": _spectra,
    "traces/features-errors": _layers,
    "traces/kfac": _above,
    "flatness/degeneracy": _degeneracy,
}
