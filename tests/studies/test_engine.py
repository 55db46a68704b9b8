"""Studies as files, criteria of four kinds, outcomes on the disk."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.reports import reproduction
from curvescope.studies import catalog, outcome, table
from curvescope.studies.networks import Description, Images
from curvescope.studies.papers import Paper, Printed, Topic, page
from curvescope.studies.run import Result, Run
from curvescope.studies.study import Criterion, Item, Study
from tests.studies.toys import CALLS, STOPS, TEXT, TOY, toy


@pytest.fixture
def only_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    monkeypatch.setattr(catalog, "studies", lambda: (TOY, STOPS))


def computed(tmp_path: Path, scale: str = "smoke") -> outcome.Outcome:
    return outcome.compute(Run(TOY, scale, tmp_path / "work"))[0]  # type: ignore[arg-type]


# Files --------------------------------------------------------------------------------------------


def test_a_file_says_everything_but_the_computation() -> None:
    assert TOY.name == "toys/toy"
    assert TOY.source == "toys sec. 1, fig. 1"
    assert TOY.reproduces == (Item("toys", figure="1"),)
    assert TOY.levels["smoke"].setting == "reduced"
    assert TOY.levels["small"].setting == "paper"
    assert [c.kind for c in TOY.criteria] == ["number", "ours", "direction", "identity", "number"]
    assert TOY.criteria[3].at == ("smoke", "small", "paper")


def test_a_printed_table_is_a_criterion_for_each_cell() -> None:
    text = TEXT + (
        '[[tables]]\ncite = "table 6"\ncolumns = ["a", "b"]\nrounding = [0.05, 0.5]\n'
        '[tables.rows]\n"F" = [[0.9, 0.8, 1.0], [12.0, 11.0, 13.0]]\n"G" = [0.5, []]\n'
    )
    with pytest.raises(CurvescopeError, match=r"low, high.*or says why.*'a, G'"):
        Study.parse(text, toy)
    known = Study.parse(text + '[tables.missing]\n"G" = "GPU, 2 h"\n', toy).criteria[-3:]
    assert [c.value for c in known] == ["a, F", "b, F", "a, G"]
    assert [c.bounds for c in known] == [(0.75, 1.05), (10.5, 13.5), (None, None)]
    assert [c.missing for c in known] == ["", "", "GPU, 2 h"]
    assert {c.cite for c in known} == {"table 6"}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('shows = "Counts."', "", "the file needs shows"),
        ('shows = "Counts."', 'shows = "Counts."\nnonsense = 1', "the file has no nonsense"),
        ("[scale.smoke]", "[scale.huge]", "scale must be one of 'smoke', 'small', 'paper'"),
        ('kind = "direction"', 'kind = "guess"', "kind must be one of"),
        ('says = "three is more than two"', "", "quotes what the paper says, got 'three over"),
        ("paper = 2.1", "", "has a number of the paper, got 'two'"),
        ("high = 2.0", "", "has low, high, range or tolerance"),
        ('figure = "1"', 'picture = "1"', "reproduces has no picture"),
        ('figure = "1"', 'figure = "1", table = "2"', "has a figure or a table"),
        ('cost = "4 s, beans"', "", "each scale needs cost"),
        ("[[criteria]]", "[[criteria]", "is not TOML"),
    ],
)
def test_what_a_study_does_not_have_is_refused(before: str, after: str, words: str) -> None:
    assert before in TEXT
    with pytest.raises(CurvescopeError, match=words.replace("[", r"\[")):
        Study.parse(TEXT.replace(before, after, 1), toy)


def test_settings_are_those_of_the_scale(tmp_path: Path) -> None:
    study = Study.parse(TEXT.replace('reduced = "beans', 'epochs = 3\nreduced = "beans'), toy)
    run = Run(study, "smoke", tmp_path)
    assert run["epochs"] == 3
    assert run.get("steps", 7) == 7
    with pytest.raises(
        CurvescopeError, match="scale 'smoke' has no setting 'steps'; it has epochs"
    ):
        run["steps"]
    with pytest.raises(CurvescopeError, match="toys/toy has no scale 'paper'; it has smoke, small"):
        Run(study, "paper", tmp_path)
    with pytest.raises(CurvescopeError, match="the study has no such networks"):
        run.networks("none")
    other = Study.parse(TEXT.replace('reduced = "beans', 'epochs = 4\nreduced = "beans'), toy)
    assert Run(other, "smoke", tmp_path).identity != run.identity


# Networks -----------------------------------------------------------------------------------------


def test_a_network_is_described_once_with_what_a_scale_changes() -> None:
    described = {
        "network": "F-9", "data": "mnist", "pixels": "symmetric", "samples": 100, "seeds": 3,
        "recipe": {"epochs": 7, "lr": 0.1}, "held_out": {"split": "test"},
        "smoke": {"network": "F-3", "data": "digits", "recipe": {"epochs": 2}},
    }  # fmt: skip
    paper = Description.of("here", described, "paper")
    assert (paper.network, paper.seeds, paper.images) == (
        "F-9",
        3,
        Images("mnist", "symmetric", samples=100),
    )
    assert paper.held_out == Images("mnist", "symmetric", split="test")
    smoke = Description.of("here", described, "smoke")
    assert (smoke.network, smoke.recipe.epochs, smoke.recipe.lr) == ("F-3", 2, 0.1)
    assert smoke.held_out == Images("digits", "symmetric", split="test")
    for wrong, words in (
        ({"colour": 1}, "a network has no colour"),
        ({"recipe": {"epochs": 1, "speed": 2}}, "recipe is not one"),
        ({"held_out": {"colour": 1}}, "a network has no colour"),
    ):
        with pytest.raises(CurvescopeError, match=words):
            Description.of("here", {**described, **wrong}, "paper")


def test_images_are_chosen_and_scaled_as_described() -> None:
    def load(**chosen: object) -> object:
        images = Images("digits", **chosen)  # type: ignore[arg-type]
        return images.load(root=None, seed=1, device="cpu")

    whole = load()
    assert float(whole.X.min()) == 0 and float(whole.X.max()) == 1  # noqa: PT018
    assert float(load(pixels="symmetric").X.min()) == -1
    assert abs(float(load(pixels="channel").X.mean())) < 1e-6
    assert load(samples=5).X.equal(whole.X[:5])
    assert load(last=5).X.equal(whole.X[-5:])
    first, second = load(samples=9, shuffled=True), load(samples=9, shuffled=True, skip=9)
    both = load(samples=18, shuffled=True)
    assert both.X[:9].equal(first.X)
    assert both.X[9:].equal(second.X)
    assert load(coarse=2).input_shape == (1, 4, 4)


def test_trained_networks_are_kept_and_recognized(tmp_path: Path) -> None:
    text = TEXT + (
        '[networks.small]\nnetwork = "F-3"\ndata = "digits"\nsamples = 40\ncurvature = 10\n'
        'seeds = 2\nrecipe = { epochs = 1, lr = 0.1 }\nheld_out = { split = "test" }\n'
    )
    told: list[str] = []
    run = Run(Study.parse(text, toy), "smoke", tmp_path, tell=told.append)
    group = run.networks("small")
    assert (len(group.models), len(group.data), len(group.few)) == (2, 40, 10)
    assert group.held_out.split == "test"
    assert told == ["training 2 × F-3, 1 epochs"]
    again = run.networks("small")
    assert told == ["training 2 × F-3, 1 epochs"]
    for one, other in zip(group.models, again.models, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert a.equal(b)
    start = group.networks[0].at_start()
    assert not next(start.parameters()).equal(next(group.models[0].parameters()))
    changed = Run(Study.parse(text.replace("lr = 0.1", "lr = 0.2"), toy), "smoke", tmp_path)
    assert not next(changed.networks("small").models[0].parameters()).equal(
        next(group.models[0].parameters())
    )


# Criteria -----------------------------------------------------------------------------------------


def test_a_criterion_is_met_inside_its_bounds_and_by_nothing_else() -> None:
    criterion = Criterion("λ", "number", paper=-2.0, tolerance=0.1)
    assert criterion.bounds == (-2.2, -1.8)
    assert [criterion.agrees(x) for x in (-2.2, -1.8, -2.21, math.nan, -math.inf)] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_lines_are_judged_when_they_are_read(tmp_path: Path) -> None:
    lines = {line.value: line for line in outcome.lines(TOY, computed(tmp_path))}
    assert {name: line.agrees for name, line in lines.items()} == {
        "two": True, "E[x]": False, "three": True, "three over two": True, "a million": None,
    }  # fmt: skip
    assert lines["two"].setting == "reduced"
    assert lines["two"].status == "matched"
    assert lines["a million"].status == "not computed"
    assert lines["a million"].note == "GPU, 4 h"
    stricter = replace(TOY.criteria[0], low=2.05)
    study = replace(TOY, criteria=(stricter, *TOY.criteria[1:]))
    for scale, explained, status in (
        ("smoke", {}, "reduced setting"),
        ("small", {}, "unexplained"),
        ("small", {"two": "It is two."}, "explained"),
    ):
        first = outcome.lines(study, computed(tmp_path, scale), explained)[0]
        assert (first.agrees, first.status) == (False, status)


def test_kinds_and_settings_are_counted_apart(tmp_path: Path) -> None:
    shown = outcome.lines(TOY, computed(tmp_path))
    tallies = {key: str(tally) for key, tally in table.tallies(shown).items()}
    assert tallies == {
        ("number", "paper"): "–",
        ("direction", "paper"): "–",
        ("number", "reduced"): "1 of 1",
        ("direction", "reduced"): "1 of 1",
        ("direction", "other"): "–",
        ("ours", ""): "0 of 1",
        ("identity", ""): "1 of 1",
    }
    assert reproduction.summary(shown) == (
        "It meets 1 of 1 of its numbers, at a reduced setting; 1 of 1 of its sentences, at a "
        "reduced setting; 0 of 1 of the project's own thresholds; 1 of 1 identities."
    )


# Files of outcomes --------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_toys")
def test_an_outcome_and_its_pictures_are_read_back(tmp_path: Path) -> None:
    made, pictures = outcome.compute(Run(TOY, "smoke", tmp_path / "work"))
    reproduction.write(tmp_path, TOY, made, pictures)
    assert outcome.load(tmp_path, "toys/toy") == made
    assert outcome.load_pictures(tmp_path, "toys/toy") == pictures
    assert outcome.load(tmp_path, "toys/other") is None
    place = tmp_path / "toys" / "toy"
    (place / "notes.md").write_text("Beans were dry.\n")
    (place / "explained.toml").write_text('"E[x]" = "There were [three]."\n')
    page = reproduction.write_page(tmp_path, TOY, made).read_text()
    assert "| E[x] | ≤ 2 | **3** | ours | **no** | of [x]; There were [three]. |" in page
    assert "| two | 2.1 (1.9 … 2.2) | **2** | number, reduced | yes |  |" in page
    assert "“three is more than two”" in page
    assert page.endswith("Beans were dry.\n")
    (place / "explained.toml").write_text("two = 3")
    with pytest.raises(CurvescopeError, match="gives each number a sentence, got two"):
        outcome.explanations(tmp_path, "toys/toy")


@pytest.mark.usefixtures("only_toys")
def test_an_outcome_that_was_changed_or_moved_is_refused(tmp_path: Path) -> None:
    made = computed(tmp_path)
    file = io.make_folder(tmp_path / "toys" / "toy") / "outcome.json"
    io.save(file, made)
    whole = file.read_text()
    for text, words in (
        (whole.replace('"ours": 2.0', '"ours": 2.5'), "its checksum is wrong"),
        (
            whole.replace('"format": 1', '"format": 0'),
            "by an earlier version: it has format 0",
        ),
        ("{}", "holds no Outcome, but something else"),
    ):
        file.write_text(text)
        with pytest.raises(CurvescopeError, match=rf"{words}.*--again computes it anew"):
            outcome.load(tmp_path, "toys/toy")
    other = io.make_folder(tmp_path / "toys" / "other") / "outcome.json"
    other.write_text(whole)
    with pytest.raises(CurvescopeError, match="is the outcome of toys/toy"):
        outcome.load(tmp_path, "toys/other")


def test_the_total_counts_runs_that_were_stopped(tmp_path: Path) -> None:
    stops = [True, True, False]

    def sometimes(run: Run) -> Result:
        if stops.pop(0):
            raise KeyboardInterrupt
        return Result({"a": 1.0})

    study = Study.parse(TEXT, sometimes)
    (io.make_folder(tmp_path / "work") / "part").touch()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            outcome.compute(Run(study, "small", tmp_path / "work"))
    assert outcome.compute(Run(study, "small", tmp_path / "work"))[0].runs == 3
    (ledger,) = (tmp_path / "work" / "seconds").rglob("*.json")
    assert len(io.load(ledger, outcome.Ledger).seconds) == 3
    io.save(ledger, outcome.Ledger((100.0, 200.0)))
    stops[:] = [False]
    again = outcome.compute(Run(study, "small", tmp_path / "work"))[0]
    assert again.total == pytest.approx(300.0, abs=1.0)
    assert reproduction.spent(again) == "5.0 min in 3 runs"
    stops[:] = [True]
    with pytest.raises(KeyboardInterrupt):
        outcome.compute(Run(study, "small", tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()


@pytest.mark.usefixtures("only_toys")
def test_the_index_adds_by_kind_and_never_identities(tmp_path: Path) -> None:
    reproduction.write(tmp_path, TOY, *outcome.compute(Run(TOY, "smoke", tmp_path / "work")))
    rows = reproduction.index(tmp_path).splitlines()
    assert any(
        row.startswith(
            "| [toys/toy](toys/toy/README.md) | smoke | – | – | 1 of 1 | 1 of 1 | – | 0 of 1"
        )
        for row in rows
    )
    assert "| toys/stops | not computed here | | | | | | | | |" in rows
    assert "| **1 of 2 computed** | | **–** | **–** | **1 of 1** |" in "\n".join(rows)


def test_a_page_tells_a_study_from_a_computation(tmp_path: Path) -> None:
    items = (Printed("fig.", "1", "beans"), Printed("fig.", "2", "peas", "too small"))
    paper = Paper("toys", "Toys", "Anybody (2020)", items)
    empty = page((paper,), (), (TOY,), {})
    assert "Of 2 figures and tables 1 have a study; 0 have been computed" in empty
    assert "| fig. 1 | beans | `toys/toy` | no |  |" in empty
    assert "| fig. 2 | peas | – | – | too small |" in empty
    full = page((paper,), (), (TOY,), {"toys/toy": computed(tmp_path, "small")})
    assert "1 have been computed at the paper's setting, 0 at a reduced one only." in full
    reduced = page((paper,), (), (TOY,), {"toys/toy": computed(tmp_path)})
    assert "| fig. 1 | beans | `toys/toy` | reduced |  |" in reduced


OWN = """
name = "toys/own"
shows = "Tries a sentence elsewhere."
[scale.smoke]
cost = "1 s, nothing"
subject = "Peas"
[[criteria]]
value = "two"
kind = "direction"
low = 1.0
says = "two is more than one"
cite = "toys, sec. 1"
at = ["smoke"]
"""


def test_a_study_of_no_paper_is_counted_for_itself(tmp_path: Path) -> None:
    study = Study.parse(OWN, toy)
    assert (study.own, study.source, study.setting("smoke")) == (True, "of no paper", "other")
    assert not TOY.own
    assert not Study.parse(TEXT.replace('section = "sec. 1"', ""), toy).own
    found = outcome.compute(Run(study, "smoke", tmp_path / "work"))[0]
    shown = outcome.lines(study, found)
    tallies = table.tallies(shown)
    judged = {key: tally for key, tally in tallies.items() if tally.judged}
    assert judged == {("direction", "other"): table.Tally(1, 1)}
    assert "1 of 1 of papers' sentences, on a network that these do not have" in (
        reproduction.summary(shown)
    )
    text = reproduction.markdown(study, found, shown, has_picture=False)
    assert "A study of no paper. Tries a sentence elsewhere." in text
    assert "direction, other network" in text
    assert "paper." not in text.replace("A study of no paper.", "")
    topic = Topic("toys", "Toys", "About toys.", "guides/toys.md")
    listed = page((), (topic,), (study,), {study.name: found})
    assert "## Toys: no paper" in listed
    assert "| `toys/own` | Tries a sentence elsewhere. | scale `smoke` |" in listed


def test_a_topic_says_what_it_is_about(tmp_path: Path) -> None:
    file = tmp_path / "topic.toml"
    file.write_text('[toys]\ntitle = "Toys"\n', encoding="utf-8")
    with pytest.raises(CurvescopeError, match="needs title and about"):
        Topic.read(file)


def test_the_table_has_every_printed_number(tmp_path: Path) -> None:
    io.save(io.make_folder(tmp_path / "toys" / "toy") / "outcome.json", computed(tmp_path))
    entries = list(table.printed_numbers((TOY, STOPS), tmp_path))
    assert [(e.line.value, e.line.status) for e in entries] == [
        ("two", "matched"),
        ("a million", "not computed"),
    ]
    text = table.markdown(entries)
    assert "2 numbers: 1 matched, 0 explained, 0 reduced setting, 0 unexplained, 1 not" in text
    assert "| toys/toy | two |  | 2.1 (1.9 … 2.2) | 2 | 0.952 | reduced | matched |  |" in text
    assert table.plain(entries[1])["cause"] == "GPU, 4 h"
    before = list(table.printed_numbers((TOY,), tmp_path / "nowhere"))
    assert [e.line.status for e in before] == ["not computed"] * 2
