"""The report and the viewer in a real browser: drawn, zoomed, toggled, silent, offline.

The pages are looked at with headless Chromium through playwright; without either, these tests skip
and say what to install. Screenshots go to ``$CURVESCOPE_SCREENSHOTS``, if that is set.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from curvescope.experiments.demo import demonstrate
from curvescope.experiments.stages import spectra
from curvescope.experiments.store import RunDirectory
from curvescope.figures import svg
from curvescope.figures.model import Image, Panel
from curvescope.reports.demonstration import write_demonstration
from curvescope.reports.page import write_report
from curvescope.reports.server import Viewer
from tests.experiments.examples import TINY

Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Open pages; afterwards, no page may have complained or asked another host."""
    complaints: list[str] = []
    contexts = []

    def open_page(address: str, *, width: int = 1100, scheme: str = "light", **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        home = address.split("/", 3)[:3]

        def asked(request: Any) -> None:
            if not request.url.startswith(("data:", "/".join(home))):
                complaints.append(f"request: {request.url}")

        page.on("request", asked)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def report(first: RunDirectory) -> str:
    return write_report(first.path, figures=False).as_uri()


@contextmanager
def serving(folder: Path) -> Iterator[Viewer]:
    with Viewer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def viewer(runs: Path) -> Iterator[Viewer]:
    with serving(runs) as server:
        yield server


def keep(page: Any, name: str) -> None:
    """Save a screenshot where someone wants to look at it."""
    folder = os.environ.get("CURVESCOPE_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def has(found: Any, count: int) -> None:
    """Wait until a locator finds this many: a click returns before the next page is drawn."""
    from playwright.sync_api import expect

    expect(found).to_have_count(count)


def view(chart: Any) -> list[float]:
    return [float(x) for x in chart.locator(".plot svg").get_attribute("data-view").split()]


def path(chart: Any, series: str) -> str:
    return chart.locator(f'g[data-name="{series}"] path.line >> visible=true').get_attribute("d")


# The report -----------------------------------------------------------------------------


def test_every_picture_is_drawn(opened: Open, report: str) -> None:
    page = opened(report)
    figures = page.locator("figure[data-chart]")
    assert figures.count() > 10
    assert figures.locator(".plot svg, .heat img").count() == figures.count()
    chart = page.locator("#chart-spectra")
    has(chart.locator("g.view").first.locator("path.line"), 3)
    has(chart.locator("g.view").first.locator("path.band"), 3)
    has(chart.locator("g.view").first.locator("circle.mark"), 18)  # six of each matrix
    assert "NaN" not in page.content()
    keep(page, "report-light")


def test_the_curve_is_the_density(opened: Open, report: str, first: RunDirectory) -> None:
    """What the page shows is what the library computes: the script computes nothing."""
    page = opened(report)
    curve = spectra.spectra_of(first)["H"].measure.density(points=640)
    series = page.evaluate(
        """() => document.getElementById("chart-spectra").drawn.spec.views[0].series[0]"""
    )
    values, low, grid = (torch.tensor(series[key]).double() for key in ("y", "low", "x"))
    torch.testing.assert_close(grid, curve.grid, atol=0, rtol=1e-4)
    peak = float(curve.values.max())
    torch.testing.assert_close(values, curve.values, atol=1e-2 * peak, rtol=1e-4)
    torch.testing.assert_close(low, curve.band()[0], atol=1e-2 * peak, rtol=1e-4)


def test_a_page_without_scripts_has_its_pictures(browser: Any, report: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report)
    chart = page.locator("#chart-spectra")
    curve = chart.locator('g.view:first-child g[data-name="H"] path.line')
    assert curve.bounding_box()["width"] > 100
    assert chart.locator("text.tick:visible").count() > 8
    assert page.locator("#chart-layer0-true-input .heat img").bounding_box()["width"] > 50
    keep(page, "report-no-script")
    context.close()


def test_the_script_leaves_every_curve_where_it_was(
    browser: Any, opened: Open, report: str
) -> None:
    """The page's own SVG and the script agree on where numbers stand, at the width of the SVG."""
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(report)
    page = opened(report)
    page.evaluate(
        """() => {
          const { drawn } = document.getElementById("chart-spectra");
          Object.defineProperty(drawn.area, "clientWidth", { value: 720 });
          drawn.draw();
        }"""
    )
    for name in ("H", "G", "E"):
        where = f'#chart-spectra g.view:first-child g[data-name="{name}"] path.line'
        paths = [each.locator(where).get_attribute("d") for each in (still, page)]
        numbers = [[float(n) for n in re.findall(r"-?[\d.]+", d)] for d in paths]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.06)
    context.close()


def test_buttons_keys_and_dragging_zoom(opened: Open, report: str) -> None:
    page = opened(report)
    chart = page.locator("#chart-spectra")
    a, b = view(chart)
    before = path(chart, "H")
    chart.get_by_role("button", name="Zoom in").click()
    c, d = view(chart)
    assert d - c == pytest.approx((b - a) / 2)
    assert path(chart, "H") != before
    chart.locator(".plot svg").focus()
    page.keyboard.press("ArrowRight")
    assert view(chart)[0] > c
    page.keyboard.press("0")
    assert view(chart) == pytest.approx([a, b])
    box = chart.locator(".plot svg").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 120, steps=4)
    page.mouse.up()
    e, f = view(chart)
    assert a < e < f < b
    page.mouse.dblclick(box["x"] + 300, box["y"] + 100)
    assert view(chart) == pytest.approx([a, b])
    chart.get_by_role("button", name="Show the bulk alone").click()
    assert view(chart)[1] < b


def test_axes_and_legend_toggle(opened: Open, report: str) -> None:
    page = opened(report)
    chart = page.locator("#chart-spectra")
    assert view(chart)[0] > -1
    toggle = chart.get_by_role("button", name="log |λ|")
    toggle.click()
    assert toggle.get_attribute("aria-pressed") == "true"
    assert view(chart)[0] < -5  # decades now
    assert "|λ|" in chart.locator(".plot svg").text_content()
    key = chart.get_by_role("button", name="E", exact=True)
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    has(chart.locator('g[data-name="E"] >> visible=true'), 0)
    key.click()
    has(chart.locator('g[data-name="E"] >> visible=true'), 1)
    before = path(chart, "H")
    chart.get_by_role("button", name="log density").click()
    assert path(chart, "H") != before
    keep(page, "report-log")


def test_numbers_under_the_pointer(opened: Open, report: str) -> None:
    page = opened(report)
    chart = page.locator("#chart-spectra")
    chart.locator(".plot svg").scroll_into_view_if_needed()
    box = chart.locator(".plot svg").bounding_box()
    page.mouse.move(box["x"] + 90, box["y"] + 100)
    assert "λ = " in chart.locator("output").inner_text()
    heat = page.locator("#chart-layer0-true-input")
    heat.locator("img").focus()
    page.keyboard.press("ArrowRight")
    assert "eigenvector of E[xxᵀ] 1, true eigenvector 2:" in heat.locator("output").inner_text()


def test_heat_maps_have_numbers_along_both_axes(opened: Open, report: str) -> None:
    """Eight columns and forty rows: the tick of a column stands under its middle."""
    heat = opened(report).locator("#chart-layer0-true-input")
    assert heat.locator(".columns span").all_inner_texts() == [str(k) for k in range(1, 9)]
    assert heat.locator(".rows span").all_inner_texts() == ["1", "5", *map(str, range(10, 41, 5))]
    box, tick = heat.locator("img").bounding_box(), heat.locator(".columns span").nth(2)
    place = tick.bounding_box()
    middle = place["x"] + place["width"] / 2
    assert middle == pytest.approx(box["x"] + 2.5 / 8 * box["width"], abs=2)
    assert "true eigenvector" in heat.locator(".heat-x").inner_text()
    assert "the first 8 of 512 true eigenvectors" in heat.locator(".remark").inner_text()


@pytest.mark.parametrize("width", [380, 1100])
@pytest.mark.parametrize(("rows", "shown"), [(8, "1 2 3 4 5 6 7 8"), (10, "2 4 6 8 10")])
def test_numbers_of_rows_stand_beside_their_rows(
    opened: Open, report: str, rows: int, shown: str, width: int
) -> None:
    """Few rows of forty columns: the map is lower than the label beside it is long."""
    heat = opened(report, width=width).locator("#chart-layer1-true-input .heat")
    image = Image.of(torch.rand(rows, 40), low=0.0, high=1.0)
    wide = svg.chart(
        Panel("wide", "true eigenvector", "eigenvector of E[xxᵀ]", image=image), id="w"
    )
    heat.evaluate("(node, html) => { node.outerHTML = html; }", wide)
    heat = heat.page.locator("#chart-layer1-true-input .heat")
    box, ticks = heat.locator("img").bounding_box(), heat.locator(".rows span").all()
    assert [tick.inner_text() for tick in ticks] == shown.split()
    rows, last = int(ticks[-1].inner_text()), box["y"]
    for tick in ticks:
        place = tick.bounding_box()
        middle = box["y"] + (int(tick.inner_text()) - 0.5) / rows * box["height"]
        assert place["y"] + place["height"] / 2 == pytest.approx(middle, abs=1)
        assert place["y"] >= last - 1  # none lies over another
        last = place["y"] + place["height"]


def test_knockouts_can_be_told_apart_where_they_lie_over_each_other(
    opened: Open, report: str
) -> None:
    chart = opened(report).locator("#chart-knockouts")
    lines = chart.locator("g.series path.line")
    looks = lines.evaluate_all(
        "all => all.map(l => [l.getAttribute('stroke-dasharray') || '', l.style.strokeWidth])"
    )
    assert len({tuple(look) for look in looks}) == len(looks) == 4
    # G, the broadest, is drawn first and lies underneath.
    assert chart.locator("g.series").first.get_attribute("data-name") == "G"
    samples = chart.locator(".legend svg.swatch line").evaluate_all(
        "all => all.map(l => l.getAttribute('stroke-dasharray') || '')"
    )
    assert samples == [look[0] for look in looks]


def test_no_label_of_an_axis_is_cut_off(opened: Open, report: str) -> None:
    for width in (380, 1100):
        page = opened(report, width=width)
        outside = page.evaluate(
            """() => [...document.querySelectorAll('.plot svg')].filter(s => s.clientWidth).flatMap(
              s => [...s.querySelectorAll('text')].filter(t => {
                const a = s.getBoundingClientRect(), b = t.getBoundingClientRect();
                if (!b.width) return false;  // of the other horizontal axis
                return b.right > a.right + 1 || b.left < a.left - 1 || b.bottom > a.bottom + 1;
              }).map(t => t.textContent))"""
        )
        assert outside == []


def test_a_folded_picture_is_drawn_when_it_is_opened(opened: Open, report: str) -> None:
    page = opened(report)
    chart = page.locator("#chart-class0-cfac")
    assert not chart.is_visible()
    page.locator("details.fold", has=chart).locator("summary").click()
    chart.locator("path.line").first.wait_for(state="visible")
    box = chart.locator(".plot svg").bounding_box()
    assert box["width"] > 300


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_and_the_button_between_them(opened: Open, report: str, scheme: str) -> None:
    page = opened(report, scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(255, 255, 255)", "rgb(21, 23, 26)"
    assert page.evaluate(paper) == (light if scheme == "light" else dark)
    keep(page, f"report-{scheme}")
    for expected in (light, dark):
        page.locator("#theme").click()
        assert page.evaluate(paper) == expected
    page.reload()
    assert page.evaluate(paper) == dark  # the choice is remembered


TOO_WIDE = """() => [...document.querySelectorAll('.scroll, p, h1, h2, h3, figure, summary')]
  .filter((node) => node.clientWidth && node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.getAttribute('aria-label') || node.textContent.slice(0, 60))"""


@pytest.mark.parametrize("width", [380, 768, 1280])
def test_nothing_is_cut_at_any_width(opened: Open, report: str, viewer: Viewer, width: int) -> None:
    """Every table fits: beside each other where there is room, as cards where there is none."""
    pages = {
        "report": report,
        "list": viewer.address,
        "training": f"{viewer.address}report/trained",
        "compare": f"{viewer.address}compare?run=first&run=group/second&run=trained",
    }
    for name, address in pages.items():
        page = opened(address, width=width, has_touch=width < 500)
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        if name in ("report", "training") or width == 380:
            assert page.evaluate(TOO_WIDE) == [], name
        keep(page, f"{name}-{width}")


def test_cards_name_their_columns_and_stay_a_table(opened: Open, report: str) -> None:
    page = opened(report, width=380)
    table = page.get_by_role("region", name="Stages").get_by_role("table")
    row = table.get_by_role("row").nth(1)
    assert row.get_by_role("rowheader").inner_text() == "overview"
    label = "n => getComputedStyle(n, '::before').content"
    assert [cell.evaluate(label) for cell in row.get_by_role("cell").all()] == [
        '"time"',
        '"seed"',
        '"finished"',
    ]
    boxes = [cell.bounding_box() for cell in row.get_by_role("cell").all()]
    assert boxes[0]["y"] < boxes[1]["y"] < boxes[2]["y"]
    has(table.get_by_role("columnheader"), 4)
    wide = opened(report, width=1280).get_by_role("region", name="Stages").get_by_role("table")
    tops = {round(cell.bounding_box()["y"]) for cell in wide.get_by_role("cell").all()[:3]}
    assert len(tops) == 1


def test_it_works_without_a_network(opened: Open, report: str) -> None:
    page = opened(report, offline=True)
    has(page.locator("#chart-spectra path.line >> visible=true"), 3)


# The demonstration ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = demonstrate(tmp_path_factory.mktemp("demo") / "out", seed=0, plan=TINY)
    return write_demonstration(found, figures=False).as_uri()


def test_the_demonstration_is_drawn_and_leads_to_the_reports(
    opened: Open, demonstration: str
) -> None:
    page = opened(demonstration)
    figures = page.locator("figure[data-chart]")
    has(figures, 4)
    has(figures.locator(".plot svg"), 4)
    chart = page.locator("#chart-spectrum-H")
    has(chart.locator("path.line >> visible=true"), 2)
    before = view(chart)
    chart.get_by_role("button", name="Zoom in").click()
    assert view(chart) != before
    chart.get_by_role("button", name="F-4", exact=True).click()
    has(chart.locator("path.line >> visible=true"), 1)
    keep(page, "demonstration")
    page.get_by_role("link", name="Full report of F-4").click()
    page.wait_for_url("**/one/analysis/report.html")
    has(page.locator("#chart-spectra path.line >> visible=true"), 3)
    narrow = opened(demonstration, width=390)
    assert narrow.evaluate("document.documentElement.scrollWidth <= innerWidth")


# The viewer -----------------------------------------------------------------------------


def test_list_filter_and_comparison(opened: Open, viewer: Viewer) -> None:
    page = opened(viewer.address)
    rows = page.locator("tr[data-words]")
    has(rows, 3)
    page.get_by_label("Filter").fill("seed 1 finished")
    assert rows.locator("visible=true").count() > 0
    shown = [row for row in rows.all() if row.is_visible()]
    assert len(shown) == 1
    page.get_by_label("Filter").fill("")
    compare = page.get_by_role("button", name="Compare")
    assert compare.is_disabled()
    for name in ("first", "group/second", "trained"):
        page.get_by_label(f"Pick {name}").check()
    keep(page, "viewer-list")
    compare.click()
    page.wait_for_url("**/compare?**")
    for matrix in ("H", "G", "E"):
        has(page.locator(f"#chart-spectrum-{matrix} path.line >> visible=true"), 2)
    has(page.locator("#chart-training-loss path.line"), 2)  # training and test
    page.get_by_role("link", name="All runs").click()
    page.get_by_role("link", name="trained").click()
    has(page.locator("#chart-training-accuracy path.line"), 2)
    assert "SHA-256" in page.locator("#end").inner_text()
    keep(page, "viewer-training")
    page.go_back()
    page.go_back()
    page.wait_for_url("**/compare?**")
    keep(page, "viewer-compare")
    page.get_by_role("link", name="All runs").click()
    page.get_by_role("link", name="group/second").click()
    has(page.locator("#chart-spectra path.line >> visible=true"), 3)


def test_long_names_and_sentences_leave_room_for_the_numbers(
    opened: Open, runs: Path, tmp_path: Path
) -> None:
    for name in ("LeNet5-mnist-6k-seed0/analysis", "ResNet18-W8-fashion-mnist-3k-seed12", "bad"):
        shutil.copytree(runs / "first", tmp_path / name)
    (tmp_path / "bad" / "stages" / "overview" / "result.json").write_text("{")
    with serving(tmp_path) as server:
        page = opened(server.address, width=1280)
        assert "damaged" in page.locator("td.state.bad").inner_text()
        assert page.evaluate(TOO_WIDE) == []
        keep(page, "list-long-1280")
        narrow = opened(server.address, width=900)
        assert narrow.evaluate(TOO_WIDE) == ["Runs"]  # it scrolls, and a shadow says so
        region = narrow.get_by_role("region", name="Runs")
        edge, inside = (shade(region, from_right) for from_right in (2, 40))
        assert edge < inside
        region.evaluate("node => { node.scrollLeft = node.scrollWidth; }")
        assert shade(region, 2) == inside
        keep(narrow, "list-long-900")


def shade(region: Any, from_right: int) -> int:
    """How light an empty place in the uppermost line of a region is."""
    pictures = pytest.importorskip("PIL.Image")  # comes with matplotlib
    with pictures.open(BytesIO(region.screenshot())) as picture:
        return int(picture.convert("L").getpixel((picture.width - from_right, 3)))


def test_a_page_of_another_site_cannot_read_the_viewer(browser: Any, viewer: Viewer) -> None:
    """A page elsewhere, even one that knows the token, gets no answer that it may read."""
    context = browser.new_context()
    page = context.new_page()
    page.route("http://evil.example/", lambda route: route.fulfill(body="<p>evil</p>"))
    page.goto("http://evil.example/")
    outcome = page.evaluate(
        "address => fetch(address).then(r => r.text(), e => 'refused')", viewer.address
    )
    context.close()
    assert outcome == "refused"
