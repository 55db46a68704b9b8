"""Panels as SVG, before any script runs."""

from __future__ import annotations

import re

import pytest

from curvescope.figures import svg
from curvescope.figures.model import Curve, Panel


def attribute(page: str, element: str, name: str) -> list[float]:
    return [float(x) for x in re.findall(rf'<{element}[^>]* {name}="([^"]*)"', page)]


def ticks(page: str) -> list[str]:
    return re.findall(r'<text class="tick"[^>]*>([^<]*)<', page)


def test_bars_stand_on_zero_at_whole_numbers() -> None:
    bars = Curve.of("λ₁", None, [2.0, 3.0, 2.5], kind="bars")
    page = svg.chart(Panel("blocks", "layer", "λ₁", (bars,)), id="blocks")
    heights = attribute(page, 'rect class="area"', "height")
    assert heights == pytest.approx([heights[0], 1.5 * heights[0], 1.25 * heights[0]], abs=0.02)
    assert ticks(page)[:3] == ["1", "2", "3"]
    assert "0" in ticks(page)
    left, width = (attribute(page, 'rect class="area"', name) for name in ("x", "width"))
    assert min(left) > svg.LEFT
    assert left[-1] + width[-1] < svg.WIDTH - svg.RIGHT
    assert left[0] + width[0] < left[1]


def test_a_single_bar() -> None:
    page = svg.chart(Panel("t", "x", "y", (Curve.of("one", None, [2.0], kind="bars"),)), id="t")
    (width,) = attribute(page, 'rect class="area"', "width")
    assert width == pytest.approx(40.0)
    assert ticks(page)[0] == "1"


def test_other_axes_have_numbers_between() -> None:
    line = Curve.of("line", [0.0, 0.5, 1.0], [1.0, 2.0, 3.0])
    assert "0.4" in ticks(svg.chart(Panel("t", "x", "y", (line,)), id="t"))
    assert svg.numbers(Panel("t", "x", "y", (line,)))["views"][0]["x"]["whole"] is False
