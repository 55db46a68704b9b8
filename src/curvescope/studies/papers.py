"""Every figure and table of the papers, and the entry that computes it, or why none does.

What an entry computes stands in its ``source`` and nowhere else; this list has what there is to
compute. :func:`page` puts the two together: it is ``docs/papers.md``, written anew by ``python -m
curvescope.studies.papers > docs/papers.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from curvescope.errors import CurvescopeError
from curvescope.studies.entry import Entry
from curvescope.studies.printed import PAPERS, Item

_LIST = re.compile(r"\b(fig\.|tables?) (.+)$")
_ITEM = re.compile(r"(\d+[a-z]?)(?: \(([^()]+)\))?$")
_PAPER = re.compile(r"\b(DH|TR|FF|PP)\b")


@dataclass(frozen=True)
class Cited:
    """A figure or table that a source names, and the part of it that is meant, if not all."""

    paper: str
    kind: str  # "fig." or "table"
    number: str
    part: str = ""


def cited(source: str) -> tuple[Cited, ...]:
    """The figures and tables of an entry's source.

    A source is a list of parts with semicolons between; each names a paper, or goes on with that of
    the part before it, and ends with figures or tables; a part in brackets restricts the figure
    before it. ``first version`` is that of DH.

    Raises:
        CurvescopeError: If a list of figures or tables holds something else.

    >>> [(c.paper, c.kind, c.number, c.part) for c in cited("FF §4: fig. 6, 7 (VGG); PP table 1")]
    [('FF', 'fig.', '6', ''), ('FF', 'fig.', '7', 'VGG'), ('PP', 'table', '1', '')]
    >>> cited("TR lemma 8.1 (no figure)")
    ()
    """
    found, paper, first = [], "", False
    for part in source.split(";"):
        named = _PAPER.search(part)
        if named is not None:
            paper, first = named[1], False
        first = first or "first version" in part
        listed = _LIST.search(part.strip())
        if listed is None:
            continue
        for text in re.split(r", (?![^(]*\))", listed[2]):
            item = _ITEM.match(text)
            if item is None:
                rule = "a list of figures holds numbers"
                remedy = "put sections before the colon"
                raise CurvescopeError(f"cited({source!r})", rule, given=repr(text), remedy=remedy)
            kind = "fig." if listed[1] == "fig." else "table"
            found.append(Cited("DH1" if first else paper, kind, item[1], item[2] or ""))
    return tuple(found)


def covering(entries: Iterable[Entry], paper: str, item: Item) -> list[tuple[str, str]]:
    """The entries that compute a figure or table, each with the part that it computes."""
    return [
        (entry.name, each.part)
        for entry in entries
        for each in cited(entry.source)
        if (each.paper, each.kind, each.number) == (paper, item.kind, item.number)
    ]


def page(entries: Iterable[Entry]) -> str:
    """All figures and tables with their entries, in Markdown."""
    entries = tuple(entries)
    lines = [
        "# The papers' figures and tables",
        "",
        "Every figure and table of the four papers with the entry of the catalog that computes",
        "it (`curvescope reproduce NAME`), or why none does. What an entry has smaller than the",
        "paper at each scale is on its page below `reproductions/`. This page is made from the",
        "entries by `python -m curvescope.studies.papers`.",
    ]
    for paper in PAPERS:
        items = [(item, covering(entries, paper.key, item)) for item in paper.items]
        done = sum(bool(found) for _, found in items)
        lines += [
            "",
            f"## {paper.title}",
            "",
            f"{done} of {len(items)} have an entry.",
            "",
            "| | shows | entries | remarks |",
            "|---|---|---|---|",
        ]
        for item, found in items:
            names = ", ".join(f"`{name}`" + (f" ({part})" if part else "") for name, part in found)
            lines.append(
                f"| {item.kind} {item.number} | {item.about} | {names or '–'} | {item.remark} |"
            )
    return "\n".join(lines) + "\n"


def _main() -> None:
    from curvescope.studies.listing import entries

    print(page(entries()), end="")


if __name__ == "__main__":
    _main()
