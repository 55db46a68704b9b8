"""The parts of a page: sections of tables, charts and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curvescope._numbers import short
from curvescope.experiments.checks import Check
from curvescope.figures import svg
from curvescope.figures.model import Panel

_PHONE, _CHARACTER, _GAP, _NAME = 335.0, 7.3, 11.0, 130.0
"""Pixels: the text column of a phone, a character, the space between columns, a row's name."""


@dataclass(frozen=True)
class Table:
    """Rows of texts, each beginning with the row's name; ``prose`` columns may wrap.

    Where a narrow screen cannot hold the columns beside each other, rows become cards there.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    heading: str = ""
    prose: bool = False
    folded: bool = False

    @property
    def kind(self) -> str:
        """The name of the block in the template."""
        return "folded" if self.folded else "table"

    @property
    def stacked(self) -> bool:
        """Whether the table is too wide for a phone.

        >>> Table("", ["", "value"], [["trace", "51.2"]]).stacked
        False
        >>> Table("", ["", "H", "G", "E"], [["trace", *["51.2134 ± 0.0021"] * 3]]).stacked
        True
        """
        if self.prose:
            return True
        # A head wraps between words, a cell does not.
        words = [max(map(len, cell.split()), default=0) for cell in self.head]
        cells = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        widths = [_CHARACTER * max(pair) + _GAP for pair in zip(words, cells, strict=False)]
        return bool(widths) and min(widths[0], _NAME) + sum(widths[1:]) > _PHONE


@dataclass(frozen=True)
class Chart:
    """An interactive picture: identifier, caption, picture, and a remark below."""

    id: str
    caption: str
    panel: Panel
    note: str = ""
    kind = "chart"

    @property
    def html(self) -> str:
        """The picture as HTML."""
        return svg.chart(self.panel, id=self.id)


@dataclass(frozen=True)
class Pair:
    """Charts side by side where there is room."""

    charts: Sequence[Chart]
    kind = "pair"


@dataclass(frozen=True)
class Text:
    """A heading (``kind="heading"``) or a remark (``kind="note"``)."""

    text: str
    kind: str = "note"


@dataclass(frozen=True)
class Checks:
    """Self-checks with their stages."""

    checks: Sequence[tuple[str, Check]]
    kind = "checks"

    @property
    def list(self) -> Sequence[Mapping[str, Any]]:
        """The fields of each check that the template shows."""
        return [
            {
                "stage": stage,
                "statement": check.statement,
                "passed": check.passed,
                "verdict": check.verdict,
            }
            for stage, check in self.checks
        ]


@dataclass(frozen=True)
class Links:
    """Links to other pages: text, address relative to this page, and a remark."""

    list: Sequence[tuple[str, str, str]]
    kind = "links"


@dataclass(frozen=True)
class Fold:
    """Blocks that can be folded away."""

    caption: str
    blocks: Sequence[Table | Chart | Pair | Text | Checks]
    open: bool = False
    kind = "fold"


Block = Table | Chart | Pair | Text | Checks | Links | Fold


@dataclass(frozen=True)
class Section:
    """A part of a page: an observation, a claim with its source, an assessment, and the evidence.

    Args:
        id: The anchor of the section in the page.
        title: Its heading.
        observation: What the numbers of this run show, in a sentence.
        claim: What the paper says about such numbers.
        blocks: The evidence: tables, pictures and remarks.
        source: The words before the claim that say whose it is.
        assessment: How far the numbers of this run agree with the claim.
    """

    id: str
    title: str
    observation: str = ""
    claim: str = ""
    blocks: Sequence[Block] = field(default_factory=tuple)
    source: str = "What the paper says."
    assessment: str = ""

    def charts(self) -> list[Chart]:
        """All charts of the section."""
        return [chart for block in self.blocks for chart in _charts(block)]


def _charts(block: Block) -> Sequence[Chart]:
    if isinstance(block, Chart):
        return [block]
    if isinstance(block, Pair):
        return block.charts
    if isinstance(block, Fold):
        return [chart for inner in block.blocks for chart in _charts(inner)]
    return []


def factor(value: float) -> str:
    """A ratio in words; ``∞`` above 10⁹, where its denominator is rounding alone.

    >>> factor(12.3456), factor(float("inf"))
    ('12.3', '∞')
    """
    return "∞" if value > 1e9 else short(value, 3)
