"""Panels as SVG for pages: complete without a script, which only zooms, hovers and switches axes.

Colors are CSS variables of the page (``--blue`` …), so that one picture serves a light and a dark
theme. :func:`chart` is the picture and its legend; :func:`numbers` is what the script needs to move
the same elements to other places.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from curvescope._numbers import short
from curvescope.errors import CurvescopeError
from curvescope.figures import ticks
from curvescope.figures.model import Curve, Image, Panel

NAMES = ("blue", "vermilion", "green", "orange", "purple", "sky", "gray")
"""The page's names of the style's cycle of colors."""
WIDTH, HEIGHT = 720, 374
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44
_DASHES = {"": "", "dashed": "7 4", "dotted": "2 3"}
_CYCLE = ("", "dashed", "dotted")
_STROKE = 1.8
_AREAS = ("filled", "bars")
_FEW = 40  # points of a line that are marked
_SINGLE = 20.0  # half the width of a bar that stands alone
# Five points of cividis, which rises evenly in lightness and survives color blindness.
_RAMP = ((0, 34, 78), (62, 80, 107), (124, 123, 120), (187, 173, 108), (254, 232, 56))


def chart(panel: Panel, *, id: str) -> str:
    """A panel as HTML: a heat map, or curves as SVG with their legend.

    >>> squares = Curve.of("squares", [1, 2, 3], [1.0, 4.0, 9.0])
    >>> page = chart(Panel("Numbers", "n", "n²", (squares,)), id="numbers")
    >>> page.count("<svg"), 'data-name="squares"' in page, "<script" in page
    (2, True, False)
    """
    if panel.image is not None:
        return _heat_map(panel, panel.image)
    views = [panel] if panel.alternate is None else [panel, panel.alternate]
    for view in views:
        if "symlog" in (view.xscale, view.yscale):
            rule = f"{view.title!r} has a symlog axis, which pages do not draw"
            raise CurvescopeError("svg", rule, remedy="use log")
    drawn = "".join(_view(view, f"{id}-{i}", visible=i == 0) for i, view in enumerate(views))
    label = f"{panel.title}. Plus and minus zoom, arrows move, 0 shows everything."
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-roledescription="chart" '
        f'aria-label="{escape(label)}">{drawn}</svg>'
    )
    return f'<div class="plot">{svg}</div>{_legend(panel)}'


def numbers(panel: Panel) -> dict[str, Any]:
    """The data of the page's script: axes and the numbers of every curve.

    >>> numbers(Panel("t", "x", "y", (Curve.of("c", [1, 2], [3.0, 4.0]),)))["views"][0]["y"]
    {'label': 'y', 'log': False, 'limits': None}
    """
    if panel.image is not None:
        image = panel.image
        axes = {"x": panel.xlabel, "y": panel.ylabel, "low": image.low, "high": image.high}
        return {"kind": "heat", **axes, "values": _digits(image.values, 3)}
    views = [panel] if panel.alternate is None else [panel, panel.alternate]
    return {"kind": "curves", "title": panel.title, "views": [_numbers(view) for view in views]}


def color(place: int, curve: Curve) -> str:
    """The page's name of a curve's color."""
    return NAMES[(place if curve.color is None else curve.color) % len(NAMES)]


def _numbers(panel: Panel) -> dict[str, Any]:
    series = []
    for curve in panel.curves:
        entry: dict[str, Any] = {"name": curve.label, "kind": curve.kind, "hidden": curve.hidden}
        for key in ("x", "y", "low", "high"):
            values = getattr(curve, key)
            entry[key] = None if values is None else _digits(values, 5)
        series.append(entry)
    return {
        "x": {"label": panel.xlabel, "log": panel.xscale == "log", "whole": panel.whole},
        "y": {
            "label": panel.ylabel,
            "log": panel.yscale == "log",
            "limits": panel.ylim,
        },
        "lines": [[label, x] for label, x in (panel.lines or {}).items()],
        "series": series,
    }


def _digits(values: Any, digits: int) -> Any:
    if isinstance(values, list | tuple):
        return [_digits(value, digits) for value in values]
    return float(f"{values:.{digits}g}") if math.isfinite(values) else None


# Places ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """Where numbers stand in the picture."""

    panel: Panel
    domain: tuple[float, float]
    range: tuple[float, float]

    def x(self, value: float) -> float:
        """The horizontal place of a number."""
        a, b = self.domain
        u = _logarithm(value) if self.panel.xscale == "log" else value
        return LEFT + (u - a) / (b - a) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """The vertical place of a number, never far outside of the picture."""
        p, q = self.range
        w = _logarithm(value) if self.panel.yscale == "log" else value
        share = min(max((w - p) / (q - p), -0.2), 1.2)
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _logarithm(value: float) -> float:
    return math.log10(value) if value > 0 else -300.0


def _visible(panel: Panel) -> list[Curve]:
    return [curve for curve in panel.curves if not curve.hidden] or list(panel.curves)


def _domain(panel: Panel) -> tuple[float, float]:
    """The horizontal axis from end to end, with some room; logarithms on a logarithmic axis."""
    places = [x for curve in _visible(panel) for x in curve.x if math.isfinite(x)]
    places += list((panel.lines or {}).values())
    places += [x + s * _half(curve.x) for curve in _bars(panel) for x in curve.x for s in (-1, 1)]
    if panel.xscale == "log":
        places = [math.log10(x) for x in places if x > 0]
    low, high = min(places, default=0.0), max(places, default=1.0)
    room = 0.02 * (high - low) or 0.5 * abs(low) or 0.5
    return low - room, high + room


def _range(panel: Panel) -> tuple[float, float]:
    """The vertical axis from end to end: the panel's limits, or what the curves need."""
    log = panel.yscale == "log"
    if panel.ylim is not None:
        low, high = panel.ylim
        return (_logarithm(low), _logarithm(high)) if log else (low, high)
    heights = [
        y
        for curve in _visible(panel)
        if curve.kind != "marks"
        for values in (curve.y, curve.low, curve.high)
        for y in values or ()
        if math.isfinite(y) and (y > 0 or not log)
    ]
    heights += [0.0] * bool(_bars(panel) and not log)  # their heights are to be compared
    low, high = min(heights, default=1.0 if log else 0.0), max(heights, default=1.0)
    if log:
        return math.log10(max(low / 1.5, 1e-12 * high)), math.log10(1.8 * high)
    room = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    return (0.0 if low == 0 else low - room), high + room


def _bars(panel: Panel) -> list[Curve]:
    return [curve for curve in _visible(panel) if curve.kind == "bars"]


def _half(places: Sequence[float]) -> float:
    """Half the width of bars at these places, or of a single one."""
    return 0.4 * min((b - a for a, b in pairwise(places)), default=1.0)


# Elements -------------------------------------------------------------------------------------


def _view(panel: Panel, id: str, *, visible: bool) -> str:
    frame = _Frame(panel, _domain(panel), _range(panel))
    # Later curves lie over earlier ones, lines over areas.
    order = sorted(enumerate(panel.curves), key=lambda entry: entry[1].kind not in _AREAS)
    curves = [_series(frame, place, curve) for place, curve in order]
    lines = [_line(frame, label, x) for label, x in (panel.lines or {}).items()]
    hidden = "" if visible else ' style="display:none"'
    body = (
        f'<defs><clipPath id="clip-{id}"><rect x="{LEFT}" y="{TOP}" '
        f'width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"/></clipPath></defs>'
        f'<g class="body" clip-path="url(#clip-{id})">{"".join(curves)}{"".join(lines)}</g>'
    )
    return f'<g class="view"{hidden}><g class="axes">{_axes(frame)}</g>{body}</g>'


def _axes(frame: _Frame) -> str:
    panel, foot = frame.panel, HEIGHT - BOTTOM
    parts = []
    whole = panel.whole and panel.xscale == "linear"
    for u, text in _ticks(frame.domain, (WIDTH - LEFT - RIGHT) / 64, panel.xscale):
        if whole and u != round(u):
            continue
        x = frame.x(10.0**u if panel.xscale == "log" else u)
        over = x + 3.4 * len(text) > WIDTH  # a label at the right end must not be cut off
        parts.append(_segment("grid", x, x, TOP, foot))
        anchor = ' text-anchor="end"' if over else ' text-anchor="middle"'
        parts.append(_text("tick", WIDTH if over else x, foot + 16, text, anchor))
    for w, text in _ticks(frame.range, (foot - TOP) / 30, panel.yscale):
        y = frame.y(10.0**w if panel.yscale == "log" else w)
        parts.append(_segment("grid", LEFT, WIDTH - RIGHT, y, y))
        parts.append(_text("tick", LEFT - 7, y + 4, text, ' text-anchor="end"'))
    parts.append(_segment("axis", LEFT, WIDTH - RIGHT, foot, foot))
    center, middle = LEFT + (WIDTH - LEFT - RIGHT) / 2, (foot + TOP) / 2
    parts.append(_text("label", center, HEIGHT - 8, panel.xlabel, ' text-anchor="middle"'))
    turned = f' text-anchor="middle" transform="rotate(-90 13 {middle:g})"'
    parts.append(_text("label", 13, middle, panel.ylabel or panel.title, turned))
    return "".join(parts)


def _ticks(ends: tuple[float, float], most: float, scale: str) -> list[tuple[float, str]]:
    if scale == "log":
        return [(u, short(10.0**u, 3)) for u in ticks.decades(*ends, most=most)]
    return [(u, short(u, 6)) for u in ticks.linear(*ends, most=most)]


def _segment(name: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.2f}" x2="{x2:.2f}" y1="{y1:.2f}" y2="{y2:.2f}"/>'


def _text(name: str, x: float, y: float, text: str, more: str = "") -> str:
    return f'<text class="{name}" x="{x:.2f}" y="{y:.2f}"{more}>{escape(text)}</text>'


def _line(frame: _Frame, label: str, value: float) -> str:
    x = frame.x(value)
    named = _text("threshold", x + 4, TOP + 12, label)
    line = _segment("threshold", x, x, TOP, HEIGHT - BOTTOM)
    return f'<g class="threshold">{line}{named}</g>'


def _series(frame: _Frame, place: int, curve: Curve) -> str:
    style = f"--c: var(--{color(place, curve)})"
    hidden = ";display:none" if curve.hidden else ""
    return (
        f'<g class="series {curve.kind}" style="{style}{hidden}" '
        f'data-name="{escape(curve.label)}" data-place="{place}">{_shapes(frame, place, curve)}</g>'
    )


def _shapes(frame: _Frame, place: int, curve: Curve) -> str:
    if curve.kind == "marks":
        foot, top = HEIGHT - BOTTOM, HEIGHT - BOTTOM - 22 - 11 * _row(frame.panel, curve)
        return "".join(
            f'<g class="mark">{_segment("mark", x, x, top, foot)}'
            f'<circle class="mark" cx="{x:.2f}" cy="{top}" r="3"/></g>'
            for x in map(frame.x, curve.x)
        )
    points = list(_points(frame, curve.x, curve.y))
    parts = []
    if curve.kind == "points":
        if curve.low is not None and curve.high is not None:
            for (x, _), low, high in zip(points, curve.low, curve.high, strict=True):
                parts.append(_segment("whisker", x, x, frame.y(low), frame.y(high)))
        return "".join([*parts, *map(_dot, points)])
    if curve.kind == "bars":
        half = _half([x for x, _ in points]) if len(points) > 1 else _SINGLE
        foot = HEIGHT - BOTTOM
        return "".join(
            f'<rect class="area" x="{x - half:.2f}" y="{y:.2f}" width="{2 * half:.2f}" '
            f'height="{max(foot - y, 0):.2f}"/>'
            for x, y in points
        )
    if curve.kind in ("steps", "filled"):
        points = _stairs(points)
    if curve.kind == "filled":
        foot = HEIGHT - BOTTOM
        closed = [*points, (points[-1][0], foot), (points[0][0], foot)]
        return f'<path class="area" d="{_path(closed)}Z"/>'
    if curve.low is not None and curve.high is not None:
        upper = list(_points(frame, curve.x, curve.high))
        lower = list(_points(frame, curve.x, curve.low))
        if curve.kind == "steps":
            upper, lower = _stairs(upper), _stairs(lower)
        parts.append(f'<path class="band" d="{_path([*upper, *lower[::-1]])}Z"/>')
    parts.append(f'<path class="line"{_look(place, curve)} d="{_path(points)}"/>')
    if curve.kind == "line" and 2 < len(points) < _FEW:
        parts += map(_dot, points)
    return "".join(parts)


def _row(panel: Panel, curve: Curve) -> int:
    """Marks of several matrices stand above each other, so that equal ones are all seen."""
    rows = [each for each in panel.curves if each.kind == "marks"]
    return len(rows) - 1 - next(i for i, each in enumerate(rows) if each is curve)


def _points(
    frame: _Frame, xs: Sequence[float], ys: Sequence[float]
) -> Iterable[tuple[float, float]]:
    for x, y in zip(xs, ys, strict=True):
        yield frame.x(x), frame.y(y)


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """From each place level to the next."""
    made = [points[0]]
    for (_, y), after in pairwise(points):
        made += [(after[0], y), after]
    return made


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _dot(point: tuple[float, float]) -> str:
    return f'<circle class="dot" cx="{point[0]:.2f}" cy="{point[1]:.2f}" r="2.6"/>'


def _look(place: int, curve: Curve) -> str:
    """Dashes and width: curves that lie over each other are told apart by more than color."""
    index = place if curve.color is None else 0
    dash = _DASHES[curve.dash or _CYCLE[index // len(NAMES) % len(_CYCLE)]]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'{dashes} style="stroke-width: {_STROKE * curve.width:g}"'


def _legend(panel: Panel) -> str:
    keys = []
    for place, curve in enumerate(panel.curves):
        style = f' style="--c: var(--{color(place, curve)})" aria-hidden="true"'
        kind = {"filled": "area", "bars": "area", "points": "dots", "marks": "dots"}.get(curve.kind)
        if kind:
            swatch = f'<span class="swatch {kind}"{style}></span>'
        else:
            line = f'<line class="line" x1="0" x2="100%" y1="50%" y2="50%"{_look(place, curve)}/>'
            swatch = f'<svg class="swatch"{style}>{line}</svg>'
        pressed = "false" if curve.hidden else "true"
        keys.append(
            f'<button type="button" aria-pressed="{pressed}" data-series="{escape(curve.label)}">'
            f"{swatch}<span>{escape(curve.label)}</span></button>"
        )
    label = "Legend: choose what is shown"
    return f'<div class="legend" role="group" aria-label="{label}">{"".join(keys)}</div>'


# Heat maps ------------------------------------------------------------------------------------


def _heat_map(panel: Panel, image: Image) -> str:
    rows, columns = len(image.values), len(image.values[0])
    label = f"{panel.title}: {rows} rows, {columns} columns. Arrows read the entries."
    ramp = ", ".join(f"rgb{color}" for color in _RAMP)
    low, high = short(image.low, 3), short(image.high, 3)
    return (
        f'<div class="heat"><span class="heat-y">{escape(panel.ylabel)}</span>'
        f"{_numbering('rows', 'top', rows, image.rows)}"
        f'<img tabindex="0" alt="{escape(label)}" style="aspect-ratio: {columns} / {rows}" '
        f'src="data:image/png;base64,{_png(image)}">'
        f"{_numbering('columns', 'left', columns, image.columns)}"
        f'<span class="heat-x">{escape(panel.xlabel)}</span></div>'
        f'<div class="scale" aria-hidden="true"><span>{low}</span>'
        f'<span class="ramp" style="background: linear-gradient(90deg, {ramp})"></span>'
        f"<span>{high}</span></div>"
    )


def _numbering(name: str, side: str, count: int, names: Sequence[str]) -> str:
    """Round numbers at the middle of their cells, and the first unless they are too dense.

    Or the names of all.
    """
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100) if count / s <= 8), 200)
    places = [max(k, 1) for k in range(0, count + 1, step) if k > 0 or step >= 5]
    shown = dict(enumerate(names, 1)) or {k: str(k) for k in places}
    spans = "".join(
        f'<span style="{side}: {100 * (k - 0.5) / count:g}%">{escape(text)}</span>'
        for k, text in shown.items()
    )
    room = max(map(len, names), default=0)
    width = f' style="width: {room}ch"' if side == "top" and names else ""
    return f'<div class="{name}"{width} aria-hidden="true">{spans}</div>'


def _png(image: Image) -> str:
    """The heat map as a PNG, a pixel for each entry."""
    width = (image.high - image.low) or 1.0
    lines = b"".join(
        b"\0" + b"".join(bytes(_shade((value - image.low) / width)) for value in row)
        for row in image.values
    )
    rows, columns = len(image.values), len(image.values[0])
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return base64.b64encode(data).decode("ascii")


def _shade(share: float) -> tuple[int, int, int]:
    t = min(max(share, 0.0), 1.0) * (len(_RAMP) - 1) if share == share else 0.0
    i = min(int(t), len(_RAMP) - 2)
    low, high = _RAMP[i], _RAMP[i + 1]
    r, g, b = (round(a + (t - i) * (c - a)) for a, c in zip(low, high, strict=True))
    return r, g, b
