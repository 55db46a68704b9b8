"""A study from one file outside the package, from the command line and from Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from curvescope.cli.app import run as command
from curvescope.studies.outcome import load
from tests.extending.conftest import blocks

NAME = 'name = "wigner/semicircle"'
OURS = ["--scale", "smoke", "--out", "results", "--quiet"]


def test_the_command_writes_page_picture_and_index(written: Callable[[str], Path]) -> None:
    written("study")
    (line,) = (text.strip() for text in blocks("study", "sh"))
    arguments = line.replace("--scale small", "--scale smoke").split()[1:]
    assert command([*arguments, "--quiet"]) == 0
    place = Path("results/wigner/semicircle")
    assert {"README.md", "outcome.json", "picture.png"} <= {f.name for f in place.iterdir()}
    page = (place / "README.md").read_text()
    assert "| mass within ±0.808 | 0.5 ± 10 % |" in page
    assert "2 of 2 of its numbers, at a reduced setting; 1 of 1 of its sentences" in page
    assert "[wigner/semicircle](wigner/semicircle/README.md)" in (
        Path("results/INDEX.md").read_text()
    )
    assert load(Path("results"), "wigner/semicircle") is not None


def test_changed_code_is_never_answered_with_its_old_numbers(
    written: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = written("study")
    assert command(["reproduce", "semicircle.py:STUDY", *OURS]) == 0
    file.write_text(file.read_text().replace("(2 * n) ** 0.5", "(8 * n) ** 0.5"))
    capsys.readouterr()
    assert command(["reproduce", "semicircle.py:STUDY", *OURS, "--json"]) == 0
    rows = {line["value"]: line for line in json.loads(capsys.readouterr().out)[0]["lines"]}
    assert rows["largest eigenvalue"]["ours"] == pytest.approx(1.0, abs=0.1)  # half of the edge
    # a wrong number fails what it must fail, and nothing else
    assert [row["agrees"] for row in rows.values()] == [False, True, False]


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (NAME, 'name = "wu2020/random-two-layer"', "is that of a study of the package"),
        (NAME, 'name = "../semicircle"', "must be a folder and a study in it"),
        ("STUDY = Study", "OTHER = Study", "has no 'STUDY'"),
        ("STUDY = Study.parse(TEXT, run)", "STUDY = {}", "an object of the class Study, got dict"),
    ],
)
def test_what_is_no_study_is_refused(
    written: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    sentence: str,
) -> None:
    file = written("study")
    file.write_text(file.read_text().replace(before, after))
    assert command(["reproduce", "semicircle.py:STUDY", *OURS]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("results").exists()


def test_the_same_from_python(
    written: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    written("study")
    import_module("semicircle")
    exec(blocks("study")[-1], {})
    assert capsys.readouterr().out == "[True, True, True]\n"
