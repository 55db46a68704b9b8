"""The pages that are made from the outcomes that come with the source are those of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from curvescope.reports import reproduction
from curvescope.studies import catalog, outcome, table

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "reproductions"
WRITE = "curvescope reproduce index --out reproductions writes it"


def test_the_index_is_that_of_the_outcomes() -> None:
    assert (COMMITTED / "INDEX.md").read_text(encoding="utf-8") == reproduction.index(COMMITTED), (
        WRITE
    )


def test_the_table_of_printed_numbers_is_that_of_the_outcomes() -> None:
    entries = table.printed_numbers(catalog.studies(), COMMITTED)
    written = (COMMITTED / "TABLE.md").read_text(encoding="utf-8")
    assert written == table.markdown(entries), WRITE


def test_the_page_of_figures_is_that_of_the_studies() -> None:
    written = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    command = "curvescope reproduce papers --out reproductions > docs/papers.md"
    assert written == reproduction.papers_page(COMMITTED), command


@pytest.mark.parametrize("study", catalog.studies(), ids=lambda study: study.name)
def test_a_page_is_that_of_its_outcome(study, tmp_path: Path) -> None:
    made = outcome.load(COMMITTED, study.name)
    if made is None:
        assert not (COMMITTED / study.name / "README.md").exists()
        return
    place = tmp_path / study.name
    place.mkdir(parents=True)
    if (COMMITTED / study.name / "picture.png").exists():
        (place / "picture.png").touch()
    page = reproduction.write_page(tmp_path, study, made, beside=COMMITTED)
    written = (COMMITTED / study.name / "README.md").read_text(encoding="utf-8")
    assert written == page.read_text(encoding="utf-8"), WRITE


def test_reproductions_stay_small() -> None:
    """Numbers, notes, one picture each, and the weights that a test or a CPU cannot make again."""
    size = sum(file.stat().st_size for file in COMMITTED.rglob("*") if file.is_file())
    drawn = sum(
        file.stat().st_size
        for pattern in ("*/*/*.svg", "*/*/pictures.json")
        for file in COMMITTED.glob(pattern)
    )
    assert size - drawn < 8_000_000
