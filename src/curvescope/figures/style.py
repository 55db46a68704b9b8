"""The style of all pictures, and how they are saved.

Figures are made without ``pyplot``: no window, no global list of figures, no change of the user's
settings. Colors are those of Okabe and Ito (2008), which stay apart for color-blind readers and
in print; the same thing has the same color everywhere (``H`` blue, ``G`` vermilion, ``E`` green).
"""

from __future__ import annotations

import io
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curvescope._numbers import RAISED
from curvescope.errors import CurvescopeError
from curvescope.io import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, GRAY, BLACK = "#CC79A7", "#56B4E9", "#7A7A7A", "#222222"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GRAY)
LINE = 1.3
"""The width of lines."""
LEGEND = 8
"""The size of letters in legends."""

_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_NAMES = {"mnist": "MNIST", "cifar": "CIFAR", "fashion-mnist": "Fashion-MNIST"}

_SETTINGS: dict[str, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "font.size": 9,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.fontsize": LEGEND,
    "lines.linewidth": LINE,
    "savefig.dpi": 160,
    "svg.hashsalt": "curvescope",  # the same picture, the same file
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def panels(
    rows: int = 1, columns: int = 1, *, width: float = 4.2, height: float = 3.0
) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure of ``rows × columns`` panels of the given size in inches."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def finish(axes: Axes, title: str = "", *, legend: bool = True) -> None:
    """The title on the left and a legend without a frame, in the sizes of this style."""
    axes.set_title(title, loc="left", fontsize=_SETTINGS["axes.titlesize"])
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=_SETTINGS["legend.fontsize"])


def pretty(text: str) -> str:
    """Names of networks and data sets with superscripts and capitals.

    >>> pretty("F-200^2 on mnist"), pretty("T-200^2_10, fc1"), pretty("fashion-mnist, cifar-10")
    ('F-200² on MNIST', 'T-200²₁₀, fc1', 'Fashion-MNIST, CIFAR-10')
    """
    text = re.sub(r"\^(\d+)", lambda match: match[1].translate(RAISED), text)
    text = re.sub(r"(?<=[\d⁰¹²³⁴⁵⁶⁷⁸⁹])_(\d+)", lambda match: match[1].translate(_LOWERED), text)
    return re.sub(r"\b(fashion-mnist|mnist|cifar)\b", lambda match: _NAMES[match[1]], text)


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: int | None = None) -> list[Path]:
    """Write ``path`` as ``.svg``, ``.pdf`` and ``.png``; the same figure gives the same bytes.

    A path with one of these endings gives that format alone. Each file is written beside its place
    and moved there. ``dpi`` is that of pixels, the style's by default.
    """
    matplotlib = _matplotlib()
    path = Path(path)
    formats = ("svg", "pdf", "png")
    ending = path.suffix.removeprefix(".")
    written = []
    for kind in (ending,) if ending in formats else formats:
        target = path if ending in formats else path.with_name(f"{path.name}.{kind}")
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
        buffer = io.BytesIO()
        with matplotlib.rc_context(_SETTINGS):
            figure.savefig(buffer, format=kind, metadata=metadata, dpi=dpi or "figure")
        with suppress(OSError):  # a folder that cannot be made is reported with the file
            target.parent.mkdir(parents=True, exist_ok=True)
        with atomic(target) as temporary:
            temporary.write_bytes(buffer.getvalue())
        written.append(target)
    return written


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        rule = "pictures need matplotlib"
        raise CurvescopeError("plots", rule, remedy="install curvescope[plots]") from None
    return matplotlib
