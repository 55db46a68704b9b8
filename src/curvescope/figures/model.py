"""Pictures as data: what is drawn, without how; complete with the numbers.

A :class:`Picture` is made once and drawn in two ways: :func:`curvescope.figures.svg.chart` makes
the interactive SVG of a page from a panel, :func:`curvescope.figures.draw.draw` a matplotlib figure
for PDF files and notebooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from curvescope._checks import AnyFloat

Values = Sequence[float] | Tensor
Scaling = Literal["linear", "log", "symlog"]
Kind = Literal["line", "points", "steps", "bars", "filled", "marks"]
Dash = Literal["", "dashed", "dotted"]
_DIGITS = 6  # what a picture can show; files stay small


@dataclass(frozen=True)
class Curve:
    """``y`` against ``x``, with a band from ``low`` to ``high`` where there is one.

    ``kind`` says how: ``"line"``, ``"points"``, ``"bars"`` around ``x``, ``"steps"`` from each
    ``x`` to the next, ``"filled"`` steps with the area below them, or ``"marks"`` at the foot of
    the panel for numbers ``x`` with the error ``± y``.

    >>> Curve.of("squares", [1, 2], torch.tensor([1.0, 4.0])).y
    (1.0, 4.0)
    """

    label: str
    x: tuple[AnyFloat, ...]
    y: tuple[AnyFloat, ...]
    low: tuple[AnyFloat, ...] | None = None
    high: tuple[AnyFloat, ...] | None = None
    kind: Kind = "line"
    color: int | None = None  # index in the style's cycle; by default the place in the panel
    dash: Dash = ""
    width: float = 1.0  # of a line, relative to the style's
    hidden: bool = False  # until the reader of a page asks for it

    @classmethod
    def of(
        cls,
        label: str,
        x: Values | None,
        y: Values,
        *,
        low: Values | None = None,
        high: Values | None = None,
        kind: Kind = "line",
        color: int | None = None,
        dash: Dash = "",
        width: float = 1.0,
    ) -> Curve:
        """From lists or tensors; ``x`` is 1, 2, … by default."""
        values = _plain(y)
        places = _plain(range(1, len(values) + 1) if x is None else x)
        band = [None if side is None else _plain(side) for side in (low, high)]
        return cls(label, places, values, band[0], band[1], kind, color, dash, width)

    @classmethod
    def mean(
        cls,
        label: str,
        x: Values | None,
        samples: Tensor,
        *,
        kind: Kind = "line",
        color: int | None = None,
        within: tuple[float, float] | None = None,
    ) -> Curve:
        """The mean over the rows of ``samples``, with a band of one standard deviation.

        The band ends at the sides of ``within``, outside of which there are no values.

        >>> Curve.mean("", None, torch.tensor([[0.0], [1.0]]), within=(0.0, 1.0)).low
        (0.0,)
        """
        middle = samples.mean(0)
        spread = samples.std(0) if len(samples) > 1 else torch.zeros_like(middle)
        low, high = middle - spread, middle + spread
        if within is not None:
            low, high = low.clamp(*within), high.clamp(*within)
        return cls.of(label, x, middle, low=low, high=high, kind=kind, color=color)


@dataclass(frozen=True)
class Image:
    """A matrix as a heat map, rows from the top; colors go from ``low`` to ``high``.

    Rows and columns are numbered from 1, or have the names in ``rows`` and ``columns``.
    """

    values: tuple[tuple[AnyFloat, ...], ...]
    low: AnyFloat
    high: AnyFloat
    label: str = ""  # what the colors are
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        values: Tensor,
        *,
        low: float | None = None,
        high: float | None = None,
        label: str = "",
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> Image:
        """From a matrix; by default the colors span its values."""
        return cls(
            tuple(_plain(row) for row in values),
            float(values.min()) if low is None else low,
            float(values.max()) if high is None else high,
            label,
            tuple(rows),
            tuple(columns),
        )


@dataclass(frozen=True)
class Panel:
    """One pair of axes: curves, later ones over earlier ones, or one heat map.

    Where there is no ``ylabel`` the title names the quantity. A ``symlog`` axis of eigenvalues is
    linear up to ``linear`` on both sides of zero, so that a bulk and its outliers can be seen at
    once. A panel with nothing to draw says why in its ``note``. ``alternate`` shows the same on
    another horizontal axis: a page offers it as a switch with the name of that axis.
    """

    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    curves: tuple[Curve, ...] = ()
    image: Image | None = None
    xscale: Scaling = "linear"
    yscale: Scaling = "linear"
    lines: Mapping[str, float] | None = None  # vertical lines: label -> x
    ylim: tuple[float, float] | None = None
    linear: float | None = None  # of a symlog x axis
    note: str = ""
    alternate: Panel | None = None

    @property
    def whole(self) -> bool:
        """Whether everything stands at whole numbers: epochs, places, dimensions."""
        return all(x == round(x) for curve in self.curves for x in curve.x if isfinite(x))


@dataclass(frozen=True)
class Picture:
    """Panels in a grid, with a caption."""

    name: str  # the file's name, without an ending
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2
    title: str = ""  # network and data; the subject of the entry where there is none


def above(counts: Sequence[float]) -> tuple[float, ...]:
    """The sums of the counts from each place on.

    >>> above((4.0, 2.0, 1.0))
    (7.0, 3.0, 1.0)
    """
    sums, total = [], 0.0
    for count in reversed(counts):
        total += count
        sums.append(float(f"{total:.6g}"))
    return tuple(reversed(sums))


def rounded(width: float) -> float:
    """A number of one digit, 1, 2 or 5, that is not smaller.

    >>> rounded(0.084), rounded(3.1), rounded(0.2)
    (0.1, 5.0, 0.2)
    """
    power = 1.0
    while power > width:
        power /= 10
    while 10 * power <= width:
        power *= 10
    factor = next(f for f in (1, 2, 5, 10) if f * power >= width * (1 - 1e-9))
    return float(f"{factor * power:.3g}")


def _plain(values: Values | range) -> tuple[float, ...]:
    numbers = values.tolist() if isinstance(values, Tensor) else values
    return tuple(float(f"{float(number):.{_DIGITS}g}") for number in numbers)
