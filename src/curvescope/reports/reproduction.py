"""The folder of a reproduction: a page in Markdown and its pictures, from its outcome alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from curvescope import io
from curvescope.figures import style
from curvescope.figures.draw import draw
from curvescope.figures.model import Picture
from curvescope.studies import catalog, papers, table
from curvescope.studies.outcome import (
    FILE,
    NOTES,
    PICTURES,
    Line,
    Outcome,
    Pictures,
    explanations,
    lines,
    load,
)
from curvescope.studies.study import Level, Study
from curvescope.studies.table import Tally, escaped, expected

INDEX = "INDEX.md"
TITLE = "# Studies, and what has been computed of them"
_AGREES = {True: "yes", False: "**no**", None: ""}
_DPI = 60  # of the page's picture, which is committed; the others are vector files


def write(
    folder: Path,
    study: Study,
    outcome: Outcome,
    pictures: Sequence[Picture],
    *,
    beside: Path | None = None,
) -> Path:
    """Write ``FOLDER/STUDY/``: pictures, their data, the page, and at last ``outcome.json``.

    Where the outcome is, the study is finished. The first picture is ``picture.png``, small; all of
    them are there as SVG. Notes and explanations of the page are those below ``beside``, by default
    ``folder``. Returns the path of the page.
    """
    place = io.make_folder(folder / study.name)
    title = study.levels[outcome.scale].subject
    for number, picture in enumerate(pictures):
        style.save(draw(picture, title=title), place / f"{picture.name}.svg")
        if number == 0:
            style.save(draw(picture, title=title), place / "picture.png", dpi=_DPI)
    io.save(place / PICTURES, Pictures(tuple(pictures)))
    page = write_page(folder, study, outcome, beside=beside)
    io.save(place / FILE, outcome)
    return page


def write_page(folder: Path, study: Study, outcome: Outcome, *, beside: Path | None = None) -> Path:
    """Write the page alone: after criteria, explanations or notes have changed."""
    beside = folder if beside is None else beside
    page = folder / study.name / "README.md"
    shown = lines(study, outcome, explanations(beside, study.name))
    drawn = page.with_name("picture.png").exists()
    _write(page, markdown(study, outcome, shown, has_picture=drawn, notes=_notes(beside, study)))
    return page


def markdown(
    study: Study, outcome: Outcome, shown: Sequence[Line], *, has_picture: bool, notes: str = ""
) -> str:
    """The page of one study."""
    level = study.levels.get(outcome.scale)
    device = outcome.environment.get("device", "cpu")
    rows = [
        f"# {study.name}",
        "",
        f"{_source(study)}. {study.shows}",
        "",
        f"`curvescope reproduce {study.name} --scale {outcome.scale} --seed {outcome.seed}`, "
        f"finished {outcome.finished[:10]} in {spent(outcome)} ({device}, "
        f"torch {outcome.environment.get('torch', '?')}); all numbers are in `{FILE}`.",
        "",
    ]
    if level is not None:
        rows += [f"**{style.pretty(level.subject)}.** {_size(study, level)}".strip(), ""]
    if has_picture:
        rows += ["![](picture.png)", ""]
    rows += [summary(shown), "", rows_table(shown)]
    if notes:
        rows += ["", notes.strip()]
    return "\n".join(rows) + "\n"


def _source(study: Study) -> str:
    """Of which paper it is, at the beginning of a sentence."""
    return "A study of no paper" if study.own else study.source


def _size(study: Study, level: Level) -> str:
    """What is smaller than in the paper, in a sentence."""
    if study.own:
        return f"Smaller than meant: {level.reduced}." if level.reduced else ""
    return f"Smaller than in the paper: {level.reduced}." if level.reduced else "As the paper."


def summary(shown: Iterable[Line]) -> str:
    """What holds, by kind, in a sentence."""
    words = {
        ("number", "paper"): "of the paper's numbers, at its setting",
        ("number", "reduced"): "of its numbers, at a reduced setting",
        ("direction", "paper"): "of its sentences, at its setting",
        ("direction", "reduced"): "of its sentences, at a reduced setting",
        ("direction", "other"): "of papers' sentences, on a network that these do not have",
        ("ours", ""): "of the project's own thresholds",
        ("identity", ""): "identities",
    }
    tallies = table.tallies(shown)
    said = [f"{tallies[key]} {words[key]}" for key in words if tallies[key].judged]
    return f"It meets {'; '.join(said)}." if said else "Nothing is judged."


def rows_table(shown: Iterable[Line]) -> str:
    """Ours beside what it is compared with."""
    rows = ["| | expected | ours | kind | agrees | |", "|---|---|---|---|---|---|"]
    for line in shown:
        c = line.criterion
        ours = "–" if line.ours is None else f"**{line.ours:.4g}**"
        kind: str = "" if c is None else c.kind
        if c is not None and line.setting != "paper" and kind in ("number", "direction"):
            kind += f", {line.setting}" if line.setting == "reduced" else ", other network"
        quoted = f"“{c.says}”" if c is not None and c.kind == "direction" else ""
        said = "" if c is None else quoted or c.says
        about = "; ".join(text for text in (line.note, said, line.explained) if text)
        cells = (line.value, expected(line), ours, kind, _AGREES[line.agrees], about)
        rows.append("| " + " | ".join(map(escaped, cells)) + " |")
    return "\n".join(rows)


def _notes(folder: Path, study: Study) -> str:
    file = folder / study.name / NOTES
    return file.read_text(encoding="utf-8") if file.exists() else ""


def index(folder: Path) -> str:
    """All studies and what the folder holds of them, with the sums by kind and setting."""
    rows = [
        TITLE,
        "",
        "`curvescope reproduce list` shows all studies, `curvescope reproduce NAME --scale SCALE`",
        "computes one. Counted apart: numbers that a paper prints (met in its printed range, or",
        "within a stated tolerance) and sentences of a paper that fix a direction, each at the",
        "paper's setting and at reduced ones; *elsewhere* are sentences that a study of no paper",
        "tries on a network of its own. Thresholds of the project and identities of mathematics",
        "or code are no agreement with a paper and are not added to anything.",
        "",
        "| study | scale | numbers | sentences | numbers, reduced | sentences, reduced "
        "| sentences elsewhere | ours | identities | time |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    sums = dict.fromkeys(table.COLUMNS, Tally())
    count = 0
    known = {study.name: study for study in catalog.studies()}
    others = {"/".join(file.parts[-3:-1]) for file in folder.glob(f"*/*/{FILE}")} - set(known)
    for name, study in known.items():
        outcome = load(folder, name)
        if outcome is None:
            rows.append(f"| {name} | not computed here | | | | | | | | |")
            continue
        tallies = table.tallies(lines(study, outcome))
        sums = {key: sums[key] + tally for key, tally in tallies.items()}
        count += 1
        cells = " | ".join(str(tallies[key]) for key in table.COLUMNS)
        rows.append(
            f"| [{name}]({name}/README.md) | {outcome.scale} | {cells} | {spent(outcome)} |"
        )
    rows += [
        f"| [{name}]({name}/README.md) | not of the package | | | | | | | | |"
        for name in sorted(others)
    ]
    cells = " | ".join(f"**{sums[key]}**" for key in table.COLUMNS)
    rows += [
        f"| **{count} of {len(known)} computed** | | {cells} | |",
        "",
        "Time is that of all runs together, where it is known, else that of the last one, which",
        "may have taken networks and parts that earlier runs had finished.",
    ]
    return "\n".join(rows) + "\n"


def write_index(folder: Path) -> None:
    """Write ``INDEX.md``, and the table of printed numbers beside it, where they have changed."""
    numbers = table.markdown(table.printed_numbers(catalog.studies(), folder))
    for name, text in ((INDEX, index(folder)), ("TABLE.md", numbers)):
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            _write(file, text)


def papers_page(folder: Path) -> str:
    """The papers' figures and tables, with what the folder holds of them (``docs/papers.md``)."""
    outcomes = {study.name: load(folder, study.name) for study in catalog.studies()}
    computed = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    return papers.page(catalog.papers(), catalog.topics(), catalog.studies(), computed)


def spent(outcome: Outcome) -> str:
    """How long it took, in words."""
    if outcome.total is None:
        return f"{_time(outcome.seconds)} (last run)"
    runs = f" in {outcome.runs} runs" if (outcome.runs or 1) > 1 else ""
    return _time(outcome.total) + runs


def _time(seconds: float) -> str:
    """A duration in seconds, minutes or hours.

    >>> _time(12.0), _time(312.0)
    ('12.0 s', '5.2 min')
    """
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _write(path: Path, text: str) -> None:
    with io.atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
