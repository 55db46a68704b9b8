"""A study from one file outside the package, from the command line and from Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from curvescope.cli.app import run as command
from curvescope.studies.record import load
from tests.extending.conftest import blocks

OURS = ["--scale", "smoke", "--out", "results", "--quiet"]


def test_the_command_writes_page_picture_and_index(written: Callable[[str], Path]) -> None:
    written("study")
    (line,) = (text.strip() for text in blocks("study", "sh"))
    arguments = line.replace("--scale small", "--scale smoke").split()[1:]
    assert command([*arguments, "--quiet"]) == 0
    place = Path("results/wigner/semicircle")
    assert {"README.md", "outcome.json", "semicircle.png"} <= {f.name for f in place.iterdir()}
    assert "| mass within ±0.808 | 0.5 (0.45 … 0.55) |" in (place / "README.md").read_text()
    assert "(wigner/semicircle/README.md) | Wigner (1955) | smoke |" in (
        Path("results/INDEX.md").read_text()
    )
    record = load(Path("results"), "wigner/semicircle")
    assert record is not None
    assert record.verdict == "3 of 3 as in the paper"


def test_changed_code_is_never_answered_with_its_old_numbers(
    written: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = written("study")
    assert command(["reproduce", "semicircle.py:ENTRY", *OURS]) == 0
    file.write_text(file.read_text().replace("(2 * n) ** 0.5", "(8 * n) ** 0.5"))
    capsys.readouterr()
    assert command(["reproduce", "semicircle.py:ENTRY", *OURS, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)[0]["outcome"]["rows"]
    assert rows[0]["ours"] == pytest.approx(1.0, abs=0.1)  # half of the true edge
    record = load(Path("results"), "wigner/semicircle")
    assert record is not None
    assert record.verdict == "1 of 3 as in the paper"  # a wrong number fails what it must fail


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('name="wigner/semicircle"', 'name="flatness/mlp"', "is that of an entry of the catalog"),
        ('name="wigner/semicircle"', 'name="../semicircle"', "must be a folder and an entry in it"),
        ("ENTRY = Entry(", "OTHER = Entry(", "has no 'ENTRY'"),
        ("ENTRY = Entry(", "ENTRY = dict(", "must name an object of the class Entry, got dict"),
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
    assert command(["reproduce", "semicircle.py:ENTRY", *OURS]) == 2
    assert sentence in capsys.readouterr().err
    assert not Path("results").exists()


def test_the_same_from_python(
    written: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    written("study")
    import_module("semicircle")
    exec(blocks("study")[-1], {})
    assert capsys.readouterr().out == "3 of 3 as in the paper\n"
