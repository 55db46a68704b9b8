"""Every study: its file, its smoke run, and that its criteria fail for wrong numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from curvescope.studies import catalog, outcome
from curvescope.studies.papers import covering
from curvescope.studies.run import Run
from curvescope.studies.study import SCALES, Criterion, Study
from tests.studies.soundness import assert_complete

COMMITTED = Path(__file__).parents[2] / "reproductions"
STUDIES = catalog.studies()
EVERY = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies share trained networks as they do for a user."""
    return tmp_path_factory.mktemp("studies")


@EVERY
def test_a_study_at_smoke_computes_what_it_is_judged_by(study: Study, work: Path) -> None:
    made, pictures = outcome.compute(Run(study, "smoke", work))
    assert made.values
    assert all(math.isfinite(number.ours) for number in made.values.values())
    for line in outcome.lines(study, made):
        if line.criterion is not None and not line.criterion.missing:
            assert line.ours is not None, f"{line.value} is judged at smoke and not computed"
        if line.criterion is not None and line.criterion.kind == "identity":
            assert line.agrees, line
    assert len({picture.name for picture in pictures}) == len(pictures)
    for picture in pictures:
        assert_complete(picture)


@EVERY
def test_a_study_says_what_it_looks_at_and_what_is_smaller(study: Study) -> None:
    assert "smoke" in study.levels
    assert study.levels["smoke"].reduced or study.criteria == ()
    for level in study.levels.values():
        assert not level.reduced.endswith(".")
        assert not level.subject.endswith(".")
    assert len({(c.value, c.kind, c.bounds) for c in study.criteria}) == len(study.criteria)
    folder = study.name.partition("/")[0]
    assert study.own == (folder in {topic.key for topic in catalog.topics()})


def just_outside(criterion: Criterion) -> Iterator[float]:
    """Numbers that must not pass: beyond each bound by a little, and none at all."""
    low, high = criterion.bounds
    yield math.nan
    if low is not None:
        yield low - 1e-6 * max(abs(low), 1e-3)
    if high is not None:
        yield high + 1e-6 * max(abs(high), 1e-3)


@EVERY
def test_a_wrong_number_fails_its_check(study: Study) -> None:
    """With the numbers of the committed outcome, each replaced by a wrong one in its turn."""
    for criterion in study.criteria:  # also of studies that have no outcome
        if not criterion.missing:
            assert not any(criterion.agrees(wrong) for wrong in just_outside(criterion)), criterion
            inside = [bound for bound in criterion.bounds if bound is not None]
            assert inside
            assert all(criterion.agrees(bound) for bound in inside), criterion
    made = outcome.load(COMMITTED, study.name)
    if made is None:
        return
    lines = outcome.lines(study, made)
    direct = [line for line in lines if line.agrees is not None and line.value in made.values]
    for line in direct:
        assert line.criterion is not None
        for wrong in just_outside(line.criterion):
            values = {**made.values, line.value: outcome.Number(wrong)}
            again = outcome.lines(replace(study, derive=None), replace(made, values=values))
            (verdict,) = (
                each.agrees
                for each in again
                if each.value == line.value and each.criterion == line.criterion
            )
            assert verdict is False, (line.value, wrong)
    derived = [line for line in lines if line.agrees is not None and line.value not in made.values]
    for line in derived:  # what follows from several numbers is judged as it comes out
        assert line.criterion is not None
        for wrong in just_outside(line.criterion):
            follows = {line.value: wrong}
            again = outcome.lines(replace(study, derive=lambda *_, made=follows: made), made)
            verdicts = [
                each.agrees
                for each in again
                if each.value == line.value and each.criterion == line.criterion
            ]
            assert verdicts == [False], (line.value, wrong)
    judged = [line for line in lines if line.agrees is not None]
    assert judged or not study.criteria, "nothing of the outcome is judged"


@EVERY
def test_explanations_are_of_numbers_that_disagree(study: Study) -> None:
    made = outcome.load(COMMITTED, study.name)
    explained = outcome.explanations(COMMITTED, study.name)
    if made is None:
        assert not explained
        return
    differs = {line.value for line in outcome.lines(study, made) if line.agrees is False}
    assert set(explained) <= differs


@EVERY
def test_a_committed_outcome_is_of_a_scale_that_exists(study: Study) -> None:
    made = outcome.load(COMMITTED, study.name)
    if made is not None:
        assert made.scale in SCALES
        assert made.scale in study.levels
        assert (COMMITTED / study.name / "README.md").exists()


def test_every_figure_and_table_has_a_study_or_a_reason() -> None:
    for paper in catalog.papers():
        for item in paper.items:
            pairs = covering(STUDIES, paper.key, item)
            assert pairs or item.remark, (paper.key, item)
            if len(pairs) == 1 and pairs[0][1]:
                assert item.remark, f"only part of {paper.key} {item.number} has a study"


def test_studies_name_what_the_papers_have() -> None:
    items = {(p.key, i.kind, i.number) for p in catalog.papers() for i in p.items}
    for study in STUDIES:
        for item in study.reproduces:
            kind = ("fig.", item.figure) if item.figure else ("table", item.table)
            assert (item.paper, *kind) in items, (study.name, item)


def test_nothing_of_the_papers_is_left_out() -> None:
    """The numbers that the captions go up to."""
    lengths = {
        "wu2020": (30, 10), "wu2020v1": (26, 9), "papyan2020": (17, 1), "granziol2020": (14, 0),
        "anonymous2021": (2, 9),
    }  # fmt: skip
    for paper in catalog.papers():
        for kind, last in zip(("fig.", "table"), lengths[paper.key], strict=True):
            numbers = {
                int(item.number.rstrip("abcdefgh")) for item in paper.items if item.kind == kind
            }
            assert numbers == set(range(1, last + 1)), paper.key
        assert max(Counter((i.kind, i.number) for i in paper.items).values()) == 1
