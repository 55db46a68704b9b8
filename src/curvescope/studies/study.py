"""What a study is: a TOML file that says what is reproduced, and a function that computes it.

The file holds what can be stated without running anything: which figures and tables, the settings
of each scale, the networks, the paper's numbers and sentences as criteria. The function gets the
settings (:class:`~curvescope.studies.run.Run`) and returns named numbers and pictures. Criteria are
applied to the numbers whenever they are read, so that an outcome never holds a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, get_args

from curvescope import io
from curvescope._checks import one_of
from curvescope.errors import CurvescopeError

if TYPE_CHECKING:
    from curvescope.studies.run import Result, Run

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Kind = Literal["number", "direction", "identity", "ours"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Setting = Literal["paper", "reduced", "other"]


@dataclass(frozen=True)
class Item:
    """A figure or table of a paper that a study computes, or a part of it."""

    paper: str  # "wu2020"
    figure: str = ""
    table: str = ""
    part: str = ""

    @property
    def label(self) -> str:
        """As one writes it.

        >>> Item("wu2020", figure="5a", part="120 outputs").label
        'fig. 5a (120 outputs)'
        """
        name = f"fig. {self.figure}" if self.figure else f"table {self.table}"
        return f"{name} ({self.part})" if self.part else name


@dataclass(frozen=True)
class Criterion:
    """What one number is compared with.

    ``kind`` says what agreement means. ``"number"``: the paper prints a number, and ours lies in
    the range that it prints (``low`` to ``high``) or within ``tolerance`` of it, relative, which is
    the project's choice. ``"direction"``: a sentence of the paper (``says``) fixes a side, such as
    larger than one. ``"ours"``: the threshold is the project's. ``"identity"``: mathematics, or the
    code against itself; it is never counted as agreement with a paper.
    """

    value: str  # the name of the number
    kind: Kind
    paper: float | None = None
    low: float | None = None
    high: float | None = None
    tolerance: float | None = None
    says: str = ""  # a quotation, or what the threshold is for
    cite: str = ""  # "table 6", "sec. 4.1"
    setting: Setting | None = None  # where it differs from that of the study
    at: tuple[Scale, ...] = ("small", "paper")
    missing: str = ""  # why no scale computes the number, and what it would take

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Between what ours agrees.

        >>> Criterion("λ", "number", paper=10.0, tolerance=0.1).bounds
        (9.0, 11.0)
        """
        if self.tolerance is None or self.paper is None:
            return self.low, self.high
        slack = abs(self.paper) * self.tolerance
        return self.paper - slack, self.paper + slack

    def agrees(self, ours: float) -> bool:
        """Whether a number of ours meets it; one that is not finite does not."""
        low, high = self.bounds
        return isfinite(ours) and (low is None or ours >= low) and (high is None or ours <= high)


@dataclass(frozen=True)
class Level:
    """A study at one scale."""

    cost: str  # "4 minutes on two cores, MNIST"
    subject: str  # network and data; the title of pictures
    reduced: str = ""  # what is smaller than in the paper, or than the study is meant to be
    settings: Mapping[str, Any] = field(default_factory=dict)  # what the study's function reads

    @property
    def setting(self) -> Setting:
        """Whether network, data and training are the paper's."""
        return "reduced" if self.reduced else "paper"


@dataclass(frozen=True)
class Study:
    """A figure, a table or a statement of a paper that can be computed, or a study of no paper.

    One that names no section, reproduces nothing and has no printed numbers is of no paper
    (:attr:`own`). Sentences of papers that it tries are counted apart: its network is not theirs.
    """

    name: str  # "wu2020/overlap": the folder of its outcome
    shows: str  # what one should see, in one or two sentences
    reproduces: tuple[Item, ...]
    levels: Mapping[Scale, Level]
    criteria: tuple[Criterion, ...]
    run: Callable[[Run], Result]
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    derive: Callable[[Mapping[str, float], Mapping[str, Any]], Mapping[str, float]] | None = None
    section: str = ""  # "sec. 5.1, App. D": where the paper speaks of it

    @property
    def own(self) -> bool:
        """Whether it is of no paper."""
        printed = any(criterion.kind == "number" for criterion in self.criteria)
        return not (self.section or self.reproduces or printed)

    def setting(self, scale: Scale) -> Setting:
        """Whether network, data and training are the paper's at a scale."""
        if self.own:
            return "other"
        return "paper" if scale not in self.levels else self.levels[scale].setting

    @property
    def source(self) -> str:
        """Section, figures and tables in words; those of the study's own paper first."""
        if self.own:
            return "of no paper"
        own = self.name.partition("/")[0]
        groups: dict[str, list[str]] = {own: [self.section] if self.section else []}
        for item in self.reproduces:
            groups.setdefault(item.paper, []).append(item.label)
        return "; ".join(
            f"{paper} {', '.join(labels)}" for paper, labels in groups.items() if labels
        )

    @classmethod
    def parse(
        cls,
        text: str,
        run: Callable[[Run], Result],
        *,
        name: str = "",
        where: str = "",
        derive: Callable[[Mapping[str, float], Mapping[str, Any]], Mapping[str, float]]
        | None = None,
        networks: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Study:
        """A study from the text of its file.

        Args:
            text: In TOML, as ``docs/extending/study.md`` describes it.
            run: Computes it.
            name: A folder and a study; by default the ``name`` that the text has.
            where: What errors call the text; by default the name.
            derive: Numbers that follow from ``(values, numbers)`` of an outcome.
            networks: Those that several studies share, beside its own.

        Raises:
            CurvescopeError: If the text is not TOML or says something that a study does not have.
        """
        where = where or name or "Study.parse"
        return _Reader(where, io.parse_toml(text, where)).study(name, run, derive, networks or {})


@dataclass
class _Reader:
    """Takes a parsed file apart and refuses what it does not know."""

    where: str
    table: dict[str, Any]

    def study(
        self,
        name: str,
        run: Callable[[Run], Result],
        derive: Callable[[Mapping[str, float], Mapping[str, Any]], Mapping[str, float]] | None,
        shared: Mapping[str, Mapping[str, Any]],
    ) -> Study:
        known = (
            "name",
            "shows",
            "section",
            "reproduces",
            "scale",
            "networks",
            "criteria",
            "tables",
        )
        self.only(self.table, known, "the file")
        levels = {
            one_of(self.where, "scale", scale, SCALES): self.level(entry)
            for scale, entry in self.need(self.table, "scale", "the file").items()
        }
        criteria = (*self.criteria(), *self.tables())
        networks = {**shared, **self.table.get("networks", {})}
        return Study(
            name=name or self.need(self.table, "name", "the file"),
            shows=self.need(self.table, "shows", "the file"),
            reproduces=tuple(self.items()),
            levels={scale: levels[scale] for scale in SCALES if scale in levels},
            criteria=criteria,
            run=run,
            networks=networks,
            derive=derive,
            section=self.table.get("section", ""),
        )

    def items(self) -> Iterator[Item]:
        for entry in self.table.get("reproduces", ()):
            self.only(entry, ("paper", "figure", "table", "part"), "reproduces")
            if ("figure" in entry) == ("table" in entry):
                self.refuse("each of `reproduces` has a figure or a table", entry)
            numbers = entry.get("figure", entry.get("table"))
            for number in numbers if isinstance(numbers, list) else [numbers]:
                kind = "figure" if "figure" in entry else "table"
                yield Item(entry["paper"], part=entry.get("part", ""), **{kind: str(number)})

    def level(self, entry: Mapping[str, Any]) -> Level:
        words = {key: entry.get(key, "") for key in ("cost", "subject", "reduced")}
        for key in ("cost", "subject"):
            self.need(entry, key, "each scale")
        return Level(**words, settings={k: v for k, v in entry.items() if k not in words})

    def criteria(self) -> Iterator[Criterion]:
        for entry in self.table.get("criteria", ()):
            names = entry["value"] if isinstance(entry.get("value"), list) else [entry.get("value")]
            for name in names:
                yield self.criterion({**entry, "value": name})

    def criterion(self, entry: Mapping[str, Any]) -> Criterion:
        names = [each.name for each in fields(Criterion)]
        self.only(entry, (*names, "range"), "criteria")
        for key in ("value", "kind"):
            self.need(entry, key, "each of `criteria`")
        one_of(self.where, "kind", entry["kind"], KINDS)
        given = {key: value for key, value in entry.items() if key != "range"}
        if "range" in entry:
            given["low"], given["high"] = entry["range"]
        if entry["kind"] == "identity":
            given.setdefault("at", SCALES)
        given["at"] = tuple(given.get("at", ("small", "paper")))
        criterion = Criterion(**given)
        judged = any(side is not None for side in criterion.bounds)
        if criterion.kind == "number" and criterion.paper is None:
            self.refuse("a criterion of kind 'number' has a number of the `paper`", criterion.value)
        if not judged and not criterion.missing:
            rule = (
                "a criterion has `low`, `high`, `range` or `tolerance`, or says why it is `missing`"
            )
            self.refuse(rule, criterion.value)
        if criterion.kind == "direction" and not criterion.says:
            self.refuse(
                "a criterion of kind 'direction' quotes what the paper `says`", criterion.value
            )
        return criterion

    def tables(self) -> Iterator[Criterion]:
        """A printed table: a list of columns, and for each row its cells.

        A cell is the number, or ``[number, smallest, largest]``; an empty list is no number.
        ``rounding`` is half of the last printed digit of each column, by which ranges are wider.
        """
        for entry in self.table.get("tables", ()):
            names = ("columns", "rows", "rounding", "name", "missing")
            common = {k: v for k, v in entry.items() if k not in names}
            columns = self.need(entry, "columns", "each of `tables`")
            rounding = entry.get("rounding", [0.0] * len(columns))
            template = entry.get("name", "{column}, {row}")
            for row, cells in self.need(entry, "rows", "each of `tables`").items():
                if len(cells) != len(columns):
                    self.refuse("a row of a table has as many cells as there are columns", row)
                for column, cell, slack in zip(columns, cells, rounding, strict=True):
                    if cell == []:
                        continue
                    value = template.format(column=column, row=row)
                    missing = entry.get("missing", {}).get(row, "")
                    yield self.criterion(
                        {"kind": "number", **common, "value": value, "missing": missing}
                        | _cell(cell, slack)
                    )

    def need(self, entry: Mapping[str, Any], key: str, whose: str) -> Any:
        if key not in entry:
            raise CurvescopeError(
                self.where, f"{whose} needs `{key}`", given=", ".join(entry) or "nothing"
            )
        return entry[key]

    def only(self, entry: Mapping[str, Any], known: Sequence[str], whose: str) -> None:
        for key in entry:
            if key not in known:
                remedy = f"it has {', '.join(known)}"
                raise CurvescopeError(self.where, f"{whose} has no `{key}`", remedy=remedy)

    def refuse(self, rule: str, given: object) -> None:
        raise CurvescopeError(self.where, rule, given=repr(given))


def _cell(cell: float | list[float], slack: float) -> dict[str, float]:
    """A printed number as fields of a criterion.

    >>> _cell([0.99, 0.98, 1.0], 0.005)
    {'paper': 0.99, 'low': 0.975, 'high': 1.005}
    """
    if not isinstance(cell, list):
        return {"paper": cell}
    paper, low, high = cell
    return {"paper": paper, "low": round(low - slack, 10), "high": round(high + slack, 10)}
