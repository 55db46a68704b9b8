"""``curvescope demo``: everything in one folder, one report, stopped, continued and shown again."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from curvescope.certificates.divergence import percent_upwards
from curvescope.cli.app import run
from curvescope.errors import CurvescopeError
from curvescope.experiments import certified
from curvescope.experiments import demo as recipe
from curvescope.experiments.demo import Demonstration, demonstrate
from curvescope.reports import demonstration as page
from curvescope.reports.demonstration import write_demonstration
from tests.experiments.examples import TINY, failed, rewritten


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Demonstration:
    return demonstrate(tmp_path_factory.mktemp("demo") / "out", seed=0, plan=TINY)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "demonstrate", functools.partial(demonstrate, plan=TINY))

    def quick(found: Demonstration, *, figures: bool) -> Path:
        return write_demonstration(found, figures=False)

    monkeypatch.setattr(page, "write_demonstration", quick)


def test_it_trains_analyses_and_certifies(result: Demonstration) -> None:
    assert result.consistent
    assert [each.config.model.name for each in result.runs] == ["F-4", "F-3^2"]
    for each in result.runs:
        assert each.complete
        assert {"sharpness", "spectrum-H", "layer-fc1", "classes", "classes-fc1"} <= set(
            each.stages
        )
        assert each.config.data.samples == 30
        assert (each.path.parent / "weights" / "final.safetensors").exists()
    assert result.certificate.verify().passed
    assert recipe.load(result.path).certificate.bound == result.certificate.bound


def test_one_page_leads_to_the_others(result: Demonstration) -> None:
    page = write_demonstration(result, figures=False)
    text = page.read_text("utf-8")
    assert page == result.path / "report.html"
    links = re.findall(r'href="([^"#]+\.html)"', text)
    assert links == ["one/analysis/report.html", "two/analysis/report.html"]
    assert all((result.path / link).is_file() for link in links)
    assert f"errs on at most {percent_upwards(result.certificate.bound)} of new digits" in text
    for words in ("Spectral density of H", "Spectral density of E", "Self-checks", "Test accuracy"):
        assert words in text


def test_json_is_all_that_is_printed_and_a_second_run_reads(
    result: Demonstration, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(certified, "certify", None)  # certifying again would fail
    before = {p: p.stat().st_mtime_ns for p in result.path.rglob("result.json")}
    assert run(["demo", "--out", str(result.path), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = json.loads(captured.out)
    assert shown["consistent"] is True
    assert shown["networks"]["F-4"]["parameters"] == 64 * 4 + 4 + 4 * 10 + 10
    assert shown["certificate"]["bound"] == result.certificate.bound
    assert {p: p.stat().st_mtime_ns for p in result.path.rglob("result.json")} == before


def test_the_table_and_the_browser(result: Demonstration, monkeypatch, capsys) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run(["demo", "--out", str(result.path), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for words in ("F-3^2", "largest eigenvalue of H", "trace of E", "certificate:", "agree"):
        assert words in captured.out
    assert captured.out.rstrip().endswith(f"open the report: {result.path / 'report.html'}")
    assert opened == []
    assert run(["demo", "--out", str(result.path), "--quiet", "--open"]) == 0
    assert opened == [(result.path / "report.html").as_uri()]


def test_a_check_that_fails_is_code_1(result: Demonstration, capsys) -> None:
    place = result.runs[0].path / "stages" / "summary" / "result.json"
    whole = place.read_text()
    try:
        rewritten(result.runs[0].path, "summary", failed)
        assert run(["demo", "--out", str(result.path), "--quiet"]) == 1
    finally:
        place.write_text(whole)
    assert "disagree: tr H by itself" in capsys.readouterr().out


def test_another_seed_is_refused(result: Demonstration) -> None:
    with pytest.raises(CurvescopeError, match="seed is 0 there and 1 here"):
        demonstrate(result.path, seed=1, plan=TINY)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, capsys) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    assert run(["demo", "--out", str(tmp_path), "--quiet"]) == 2
    assert "is neither empty nor a run directory" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("part", ["F-3^2: training", "F-4: layer-fc1", "T-4: certificate"])
def test_stopped_anywhere_it_goes_on_to_the_same_end(
    part: str, result: Demonstration, tmp_path: Path, monkeypatch, capsys
) -> None:
    def stop(words: str) -> None:
        if words == part:
            raise KeyboardInterrupt

    def stopped(*arguments: object, **keywords: object) -> Demonstration:
        return demonstrate(*arguments, **{**keywords, "plan": TINY, "tell": stop})

    monkeypatch.setattr(recipe, "demonstrate", stopped)
    assert run(["demo", "--out", str(tmp_path / "out"), "--quiet"]) == 130
    error = capsys.readouterr().err
    assert error.startswith("curvescope: interrupted; ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "report.html").exists()
    again = demonstrate(tmp_path / "out", seed=0, plan=TINY)
    for a, b in zip(again.runs, result.runs, strict=True):
        assert a.stage("spectrum-H", Any).result == b.stage("spectrum-H", Any).result
    assert again.certificate.bound == result.certificate.bound
