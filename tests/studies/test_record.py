"""Outcomes on the disk: earlier formats, times over several runs, checks and what is reduced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.figures.model import Curve, Panel, Picture
from curvescope.reports import reproduction
from curvescope.studies import listing, record
from curvescope.studies.entry import SCALES, Entry, Outcome, Row, Settings
from tests.studies.soundness import assert_complete

COMMITTED = Path(__file__).parents[2] / "reproductions"
STOPPED: list[bool] = []


def toy(settings: Settings) -> Outcome:
    if STOPPED.pop():
        raise KeyboardInterrupt
    curve = Curve.of("", None, [0.1, 0.2], low=[-0.1, 0.0], high=[0.3, 1.3])
    panel = Panel(title="fc1", xlabel="k", ylabel="overlap", curves=(curve,))
    return Outcome((Row("a", 2.0), Row("b", 3.0)), (Picture("p", "Overlaps.", (panel,)),))


def grows(outcome: Outcome) -> list[Row]:
    a, b = (row.ours for row in outcome.rows)
    return [Row("b over a", b / a, low=1.0)]


TOY = Entry(
    "toys/toy", "toy (no figure)", "Counts.", {"small": "nothing"}, toy,
    subject={"small": "F-2^2 on toys"}, reduced={"small": "2 epochs instead of 300"}, checks=grows,
)  # fmt: skip


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "entries", lambda: (TOY,))
    monkeypatch.setattr(reproduction, "entries", lambda: (TOY,))


def made(tmp_path: Path, *stops: bool) -> record.Record:
    settings = Settings("small", io.make_folder(tmp_path / "work"))
    (settings.work / "part").touch()
    STOPPED[:] = [False, *reversed(stops)]
    for _ in stops:
        with pytest.raises(KeyboardInterrupt):
            record.run(TOY, settings)
    return record.run(TOY, settings)


@pytest.mark.usefixtures("alone")
def test_the_total_counts_runs_that_were_stopped(tmp_path: Path) -> None:
    found = made(tmp_path, True, True)
    assert found.runs == 3
    (ledger,) = (tmp_path / "work" / "seconds").rglob("*.json")
    assert len(io.load(ledger, record.Ledger).seconds) == 3
    io.save(ledger, record.Ledger((100.0, 200.0)))
    STOPPED[:] = [False]
    again = record.run(TOY, Settings("small", tmp_path / "work"))
    assert again.total == pytest.approx(300.0, abs=1.0)
    assert reproduction.spent(again) == "5.0 min in 3 runs"


@pytest.mark.usefixtures("alone")
def test_a_run_that_left_nothing_is_not_counted(tmp_path: Path) -> None:
    STOPPED[:] = [True]
    with pytest.raises(KeyboardInterrupt):
        record.run(TOY, Settings("small", tmp_path / "work"))
    assert not (tmp_path / "work").exists()


def test_a_bar_in_a_name_is_no_column() -> None:
    line = reproduction.table((Row("largest |λ|", 2.0, note="|x| ≤ 1"),)).splitlines()[2]
    assert line == r"| largest \|λ\| | – | **2** | \|x\| ≤ 1 |"


@pytest.mark.usefixtures("alone")
def test_checks_and_words_come_from_the_entry(tmp_path: Path) -> None:
    found = made(tmp_path)
    unchecked = replace(found.outcome, checks=())  # as an outcome that was made before the check
    replace(found, outcome=unchecked, shows="Old words.", reduced="").save(tmp_path)
    again = record.load(tmp_path, "toys/toy")
    assert again is not None
    assert again == found
    assert [row.agrees for row in again.outcome.judged] == [True]
    assert again.verdict == "1 of 1 as in the paper"
    page = reproduction.markdown(again)
    assert (
        "**F-2² on toys.** Smaller than in the paper at this scale: 2 epochs instead of 300."
        in page
    )
    assert "| b over a | ≥ 1 | **1.5** | yes |" in page


@pytest.mark.usefixtures("alone")
def test_an_outcome_that_was_changed_moved_or_made_earlier_is_refused(tmp_path: Path) -> None:
    made(tmp_path).save(tmp_path)
    file = tmp_path / "toys" / "toy" / "outcome.json"
    whole = file.read_text()
    for text, words in (
        (whole.replace('"ours": 2.0', '"ours": 2.5'), "its checksum is wrong"),
        (whole.replace('"format": 3', '"format": 2'), "has format 2, this version reads 3"),
        ("{}", "holds no Record, but something else"),
    ):
        file.write_text(text)
        with pytest.raises(CurvescopeError, match=rf"{words}.*--again computes it anew"):
            record.load(tmp_path, "toys/toy")
    other = io.make_folder(tmp_path / "toys" / "other") / "outcome.json"
    other.write_text(whole)
    with pytest.raises(CurvescopeError, match="is the outcome of toys/toy"):
        record.load(tmp_path, "toys/other")


@pytest.mark.usefixtures("alone")
def test_the_index_counts_rows_judged_and_met(tmp_path: Path) -> None:
    found = made(tmp_path)
    more = (*found.outcome.rows, Row("c", 5.0, high=4.0))
    replace(found, outcome=replace(found.outcome, rows=more[:2])).save(tmp_path)
    assert "| small | 1 of 1 as in the paper | 3 |" in reproduction.index(tmp_path)
    assert "| 1 entries | | | 1 of 1 as in the paper | 3 | |" in reproduction.index(tmp_path)


# The real entries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", listing.entries(), ids=lambda entry: entry.name)
def test_an_entry_says_what_it_looks_at_and_what_is_smaller(entry: Entry) -> None:
    assert set(entry.subject) == set(entry.reduced) == set(entry.cost)
    assert all(entry.subject[scale] and entry.reduced[scale] for scale in SCALES)
    assert not any(
        text.endswith(".") for text in (*entry.subject.values(), *entry.reduced.values())
    )


@pytest.mark.parametrize(
    "name", [entry.name for entry in listing.entries() if (COMMITTED / entry.name).is_dir()]
)
def test_a_committed_outcome_can_be_read_and_drawn(name: str) -> None:
    found = record.load(COMMITTED, name)
    assert found is not None
    assert found.outcome.judged, "every entry has something to meet"
    for picture in found.outcome.pictures:
        assert picture.title or found.subject
        assert_complete(picture)
