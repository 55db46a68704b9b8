"""The list of all figures and tables, against the entries and against the page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from curvescope.errors import CurvescopeError
from curvescope.studies.listing import entries
from curvescope.studies.papers import Cited, cited, covering, page
from curvescope.studies.printed import PAPERS

ROOT = Path(__file__).parents[2]
KNOWN = {(p.key, i.kind, i.number) for p in PAPERS for i in p.items}


def test_the_page_is_that_of_the_entries() -> None:
    written = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert written == page(entries()), "python -m curvescope.studies.papers > docs/papers.md"


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_a_source_names_what_the_papers_print(entry: object) -> None:
    source = getattr(entry, "source", "")
    found = cited(source)
    assert all((c.paper, c.kind, c.number) in KNOWN for c in found), source
    assert found or "(no figure)" in source
    assert len({(c.paper, c.kind, c.number) for c in found}) == len(found)


def test_every_figure_and_table_has_an_entry_or_a_reason() -> None:
    known = entries()
    for paper in PAPERS:
        for item in paper.items:
            named = covering(known, paper.key, item)
            assert named or item.remark, (paper.key, item)
            if named and all(part for _, part in named) and len(named) == 1:
                assert item.remark, f"only part of {paper.key} {item.number} has an entry"


def test_nothing_of_the_papers_is_left_out() -> None:
    """The numbers that the captions go up to."""
    for paper, figures, tables in (
        ("DH", 30, 10), ("DH1", 26, 9), ("TR", 17, 1), ("FF", 14, 0), ("PP", 2, 9)
    ):  # fmt: skip
        (items,) = (p.items for p in PAPERS if p.key == paper)
        for kind, last in (("fig.", figures), ("table", tables)):
            numbers = {int(i.number.rstrip("abcdefgh")) for i in items if i.kind == kind}
            assert numbers == set(range(1, last + 1))
    assert max(Counter(KNOWN).values()) == 1


def test_a_source_is_read_part_by_part() -> None:
    found = cited("DH F.4: fig. 27, 28; table 8 (LeNet5, BN); first version, fig. 3; tables 1, 9")
    assert found == (
        Cited("DH", "fig.", "27"),
        Cited("DH", "fig.", "28"),
        Cited("DH", "table", "8", "LeNet5, BN"),
        Cited("DH1", "fig.", "3"),
        Cited("DH1", "table", "1"),
        Cited("DH1", "table", "9"),
    )


def test_a_source_that_cannot_be_read() -> None:
    with pytest.raises(CurvescopeError, match="holds numbers, got '8 to 11'"):
        cited("TR fig. 8 to 11")
