"""Pictures of the catalog: readable at the width of a page, complete, nothing on the data."""

from __future__ import annotations

import math

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from curvescope.figures import ticks
from curvescope.figures.draw import WIDTH, draw
from curvescope.figures.model import Curve, Image, Panel, Picture
from curvescope.figures.svg import chart


def picture(*panels: Panel, columns: int = 2, title: str = "") -> Picture:
    return Picture("p", "A picture.", panels, columns, title)


def overlap(label: str = "between models", **changes: object) -> Panel:
    x = torch.arange(1, 41)
    curves = (
        Curve.of(label, x, torch.linspace(0.1, 0.8, 40)),
        Curve.of("expected", x, torch.linspace(0.8, 0.1, 40)),
    )
    known = {"title": "fc1", "xlabel": "k", "ylabel": "overlap", "curves": curves}
    return Panel(**{**known, **changes})  # type: ignore[arg-type]


def drawn(made: Picture, title: str = "") -> Figure:
    figure = draw(made, title=title)
    FigureCanvasAgg(figure).draw()  # lays everything out
    return figure


@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_all_figures_are_as_wide_and_their_letters_as_large(columns: int) -> None:
    figure = drawn(picture(*[overlap()] * columns, columns=columns), "LeNet5 on cifar-10")
    assert figure.get_size_inches()[0] == pytest.approx(WIDTH)
    axes = figure.axes[0]
    assert axes.xaxis.label.get_fontsize() == pytest.approx(9)
    assert figure.get_suptitle() == "LeNet5 on CIFAR-10"


@pytest.mark.parametrize("same", [True, False])
def test_legends_lie_outside_of_all_axes(same: bool) -> None:
    figure = drawn(picture(overlap(), overlap("between models" if same else "between others")))
    legends = [*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend())]
    assert len(legends) == (1 if same else 2)
    for legend in legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
        assert figure.bbox.contains(*box.min)
        assert figure.bbox.contains(*box.max)
    if same:
        assert [text.get_text() for text in legends[0].get_texts()] == [
            "between models",
            "expected",
        ]


def test_a_picture_has_its_own_title_before_that_of_the_entry() -> None:
    assert draw(picture(overlap(), title="F-200^2"), title="x").get_suptitle() == "F-200²"


@pytest.mark.parametrize(
    ("low", "high"), [(0.4, 0.9), (30, 520), (1.1, 1.9), (2e-5, 9e-5), (1e-10, 1e7), (0.02, 1.0)]
)
def test_a_logarithmic_axis_has_numbers(low: float, high: float) -> None:
    curve = Curve.of("", [low, high], [low, high])
    figure = drawn(picture(Panel(xlabel="x", ylabel="y", curves=(curve,), xscale="log",
                                 yscale="log"), columns=1))  # fmt: skip
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        begin, end = axis.get_view_interval()
        places = [x for x in axis.get_majorticklocs() if begin <= x <= end]
        words = [axis.get_major_formatter()(x) for x in places]
        assert 2 <= len(places) <= 7
        assert all(words)
        assert len(set(words)) == len(words)
        assert not any(axis.get_minor_formatter()(x) for x in axis.get_minorticklocs())


def test_ticks_are_inside() -> None:
    for low, high in ((1e-3, 1.0), (0.011, 0.099), (5.0, 6.0), (1e-9, 1e9)):
        found = [10**u for u in ticks.decades(math.log10(low), math.log10(high), most=6)]
        assert 1 <= len(found) <= 6
        assert all(low * 0.999 <= x <= high * 1.001 for x in found)


def test_bulk_and_outliers_are_both_wide() -> None:
    """On the symlog axis neither has less than a fifth of the width."""
    curves = (
        Curve.of("density", torch.linspace(-0.1, 0.1, 50), torch.ones(50)),
        Curve.of("eigenpairs", [0.2, 1.0, 50.0], [1, 1, 1], kind="points"),
    )
    figure = drawn(picture(Panel(xlabel="eigenvalue", ylabel="n", curves=curves, xscale="symlog",
                                 linear=0.1), columns=1))  # fmt: skip
    axes = figure.axes[0]
    left, right, far = (axes.transData.transform((x, 1))[0] for x in (-0.1, 0.1, 50.0))
    width = axes.get_window_extent().width
    assert (right - left) / width > 0.2
    assert (far - right) / width > 0.2
    shown = {label.get_text() for label in axes.get_xticklabels()}
    assert {"−0.1", "0", "0.1"} <= shown


def test_a_line_is_named_beside_it_and_not_in_the_legend() -> None:
    figure = drawn(picture(overlap(lines={"m = 16": 16.0}), overlap(lines={"m = 8": 8.0})))
    (legend,) = figure.legends
    assert not any("m =" in text.get_text() for text in legend.get_texts())
    for axes, label in zip(figure.axes, ("m = 16", "m = 8"), strict=True):
        (word,) = [text for text in axes.texts if text.get_text() == label]
        top = axes.transData.transform((1, 0.8))[1]
        assert word.get_window_extent().y0 >= top  # above all data


def test_an_empty_panel_says_why() -> None:
    figure = drawn(picture(overlap(), Panel(title="fc8", xlabel="k", note="nothing is left")))
    axes = figure.axes[1]
    assert [text.get_text() for text in axes.texts] == ["nothing is left"]
    assert len(axes.get_xticks()) == 0
    assert axes.get_xlabel() == ""


def test_labels_that_all_panels_share_stand_at_the_edges() -> None:
    figure = drawn(picture(*[overlap()] * 4))
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "k", "k"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["overlap", "", "overlap", ""]


def test_a_panel_without_ylabel_is_named_by_its_title() -> None:
    figure = drawn(picture(overlap(ylabel="", title="test error"), columns=1))
    assert figure.axes[0].get_ylabel() == "test error"
    assert figure.axes[0].get_title(loc="left") == ""


def test_few_points_of_a_line_are_marked() -> None:
    short = Curve.of("a", None, [1.0, 2.0, 3.0])
    figure = drawn(picture(Panel(xlabel="x", ylabel="y", curves=(short,)), columns=1))
    assert figure.axes[0].lines[0].get_marker() == "o"


def test_the_eleventh_color_has_another_marker() -> None:
    curves = tuple(Curve.of(str(i), [i], [i], kind="points") for i in range(11))
    lines = draw(picture(Panel(xlabel="x", ylabel="y", curves=curves))).axes[0].lines
    looks = {(line.get_color(), line.get_marker()) for line in lines}
    assert len(looks) == 11


def test_a_heat_map_names_its_colors() -> None:
    image = Image.of(torch.eye(3), label="correspondence")
    figure = drawn(picture(Panel(title="fc1", xlabel="j", ylabel="i", image=image), columns=1))
    assert figure.axes[1].get_ylabel() == "correspondence"


def test_a_table_has_its_names_and_numbers() -> None:
    values = torch.tensor([[0.25, 1.0], [float("nan"), 0.5]])
    image = Image.of(values, low=0.0, high=1.0, rows=("q", "<k>"), columns=("start", "end"))
    panel = Panel(title="cosine", image=image)
    axes = drawn(picture(panel, columns=1)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["q", "<k>"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["start", "end"]
    assert [text.get_text() for text in axes.texts] == ["0.25", "1", "0.5"]
    assert (axes.get_title(loc="left") or axes.get_title(), axes.get_ylabel()) == ("cosine", "")
    page = chart(panel, id="table")
    assert all(f">{name}</span>" in page for name in ("q", "&lt;k&gt;", "start", "end"))
