"""The report: one file, offline, escaped, the same every time, from the directory alone."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from curvescope import io
from curvescope.certificates.certification import certify
from curvescope.certificates.divergence import percent_upwards
from curvescope.certificates.methods import posterior_method
from curvescope.errors import CurvescopeError
from curvescope.experiments.store import Finding, RunDirectory
from curvescope.figures import svg
from curvescope.figures.model import Curve, Panel
from curvescope.reports.page import embedded, render, write_report
from tests.experiments.examples import data, reconfigured, rewritten, trained


@pytest.fixture(scope="module")
def page(first: RunDirectory) -> str:
    return render(first)


class Elements(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def specs(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


def test_nothing_is_asked_of_another_place(page: str) -> None:
    for tag, attributes in Elements(page).found:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    script = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//cdn|@import|url\((?!#)", script)
    assert "default-src 'none'" in page


def test_every_section_says_two_things(page: str) -> None:
    sections = re.findall(r'<section id="(\w+)"(.*?)</section>', page, flags=re.DOTALL)
    names = [name for name, _ in sections]
    assert names == ["overview", "spectra", "layers", "classes", "provenance"]
    for _, text in sections:
        assert text.count("<b>What you see.</b>") == 1
        assert text.count('<div class="says">') == 1


def test_every_chart_has_its_numbers(page: str) -> None:
    drawn = {a["data-chart"] for tag, a in Elements(page).found if tag == "figure"}
    found = specs(page)
    assert drawn == set(found)
    assert {"spectra", "layer0-values", "layer0-true-input", "attribution", "knockouts"} <= drawn
    for view in found["spectra"]["views"]:
        names = [series["name"] for series in view["series"]]
        assert names[:3] == ["H", "G", "E"]
        assert any(re.match("G, all [0-9,]+ eigenvalues", name) for name in names)


def test_the_same_directory_gives_the_same_page(first: RunDirectory, page: str) -> None:
    assert render(RunDirectory(first.path)) == page


def test_names_are_escaped(first: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(first.path, tmp_path / "run")
    reconfigured(
        tmp_path / "run",
        model=replace(first.config.model, name="</script><script>alert(1)</script>"),
        data=replace(first.config.data, name='"><img src=x onerror=alert(1)>'),
    )
    page = render(RunDirectory(tmp_path / "run"))
    tags = [tag for tag, _ in Elements(page).found]
    images = [attributes for tag, attributes in Elements(page).found if tag == "img"]
    assert all("onerror" not in image for image in images)
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
    assert tags.count("script") == 2
    assert "<script>alert" not in page


def test_embedded_json_cannot_end_its_element() -> None:
    value = {"name": "</script><!--&\u2028"}
    text = embedded(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_numbers_that_are_not_finite_become_null() -> None:
    curve = Curve.of("c", [1, 2, 3], [float("inf"), float("nan"), 1 / 3])
    assert svg.numbers(Panel(curves=(curve,)))["views"][0]["series"][0]["y"] == [
        None,
        None,
        0.33333,
    ]


def test_an_unfinished_run_gets_a_report_of_what_is_there(
    first: RunDirectory, tmp_path: Path
) -> None:
    shutil.copytree(first.path, tmp_path / "run")
    for name in first.stages[3:]:
        shutil.rmtree(tmp_path / "run" / "stages" / name)
    page = render(RunDirectory(tmp_path / "run"))
    assert "still to come: spectrum-G" in page
    assert 'id="layers"' not in page
    shutil.rmtree(tmp_path / "run" / "stages")
    assert "Of 0 self-checks" in render(RunDirectory(tmp_path / "run"))


def test_a_layer_that_was_left_out_says_why(first: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(first.path, tmp_path / "run")
    for name in ("layer-fc1", "classes-fc1", "classes"):
        rewritten(
            tmp_path / "run",
            name,
            lambda stage: replace(stage, result=Finding("fc1", None, "it is used twice")),
        )
    page = render(RunDirectory(tmp_path / "run"))
    assert page.count("Left out: fc1: it is used twice") == 1
    assert "Left out: it is used twice" in page


def test_a_certificate_beside_the_analysis_is_shown(first: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(first.path, tmp_path / "run")
    model = copy.deepcopy(trained()).float()
    X, y = data()
    found = certify(
        model,
        {name: 0.5 * p for name, p in model.state_dict().items()},
        (X.float(), y),
        generator=torch.Generator().manual_seed(0),
        method=posterior_method("local", epochs=2),
        slack=0.05,
    )
    found.save(tmp_path / "run" / "certificate.json")
    page = render(RunDirectory(tmp_path / "run"))
    assert f"errs on at most {percent_upwards(found.bound)} of new examples" in page
    assert "DOES NOT HOLD" not in page
    assert "Nothing is claimed about the network at the posterior mean" in page
    assert specs(page)["certificate"]["views"][0]["series"][0]["y"][0] == pytest.approx(
        found.history[0].bound, rel=1e-4
    )
    forged = replace(found, bound=found.bound / 2)
    forged.save(tmp_path / "run" / "certificate.json")
    assert "DOES NOT HOLD" in render(RunDirectory(tmp_path / "run"))
    stored = io.read_json(tmp_path / "run" / "certificate.json")
    io.write_json(tmp_path / "run" / "certificate.json", {**stored, "bound": 0.01})
    assert "THE FILE IS REFUSED" in render(RunDirectory(tmp_path / "run"))


def test_a_report_is_written_without_the_model(first: RunDirectory, tmp_path: Path) -> None:
    """Another process, which has never seen the model, makes the same page."""
    shutil.copytree(first.path, tmp_path / "run")
    script = (
        "import sys; from curvescope.reports import write_report; "
        "print(write_report(sys.argv[1], figures=False))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run"], capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "run" / "report.html"), done.stderr
    assert (tmp_path / "run" / "report.html").read_text("utf-8") == render(first)


def test_without_jinja2_there_is_one_sentence(first: RunDirectory, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(CurvescopeError, match=r"pages need jinja2; install curvescope\[report\]"):
        render(first)


def test_a_full_disk_leaves_the_old_report(first: RunDirectory, tmp_path: Path, monkeypatch):
    shutil.copytree(first.path, tmp_path / "run")
    (tmp_path / "run" / "report.html").write_text("old")

    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CurvescopeError, match="No space left on device"):
        write_report(tmp_path / "run", figures=False)
    assert (tmp_path / "run" / "report.html").read_bytes() == b"old"
    assert not list((tmp_path / "run").glob(".*part"))
