"""Studies from the command line, with studies of nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curvescope.cli import app
from curvescope.cli.studies import listing
from curvescope.errors import CurvescopeError
from curvescope.io import held
from curvescope.reports import reproduction
from curvescope.studies import catalog
from curvescope.studies.outcome import load
from curvescope.studies.run import Run
from tests.studies.toys import CALLS, STOPS, TOY


@pytest.fixture(autouse=True)
def only_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    monkeypatch.setattr(catalog, "studies", lambda: (TOY, STOPS))


def test_an_entry_is_computed_once_and_leaves_page_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "toys/toy", "--out", str(tmp_path), "--quiet"]
    assert app.run(arguments) == 0
    printed = capsys.readouterr().out
    assert "agrees (number)" in printed
    assert "differs (ours); of" in printed
    assert "E[x]" in printed
    place = tmp_path / "toys" / "toy"
    names = sorted(file.name for file in place.iterdir())
    assert names == ["README.md", "outcome.json", "picture.png", "pictures.json", "toy.svg"]
    page = (place / "README.md").read_text()
    assert "| two | 2.1 (1.9 … 2.2) | **2** | number, reduced | yes |" in page
    assert "| E[x] | ≤ 2 | **3** | ours | **no** | of [x] |" in page
    assert "| smoke | – | – | 1 of 1 | 1 of 1 | – | 0 of 1 |" in (tmp_path / "INDEX.md").read_text()
    assert "| toys/toy | two |" in (tmp_path / "TABLE.md").read_text()
    assert app.run(arguments) == 0
    assert len(CALLS) == 1
    assert app.run([*arguments, "--again"]) == 0
    assert len(CALLS) == 2


def test_what_was_written_is_read_back_and_drawn_again(tmp_path: Path) -> None:
    assert app.run(["reproduce", "toys/toy", "--out", str(tmp_path), "--quiet"]) == 0
    outcome = load(tmp_path, "toys/toy")
    assert outcome is not None
    assert {name: number.ours for name, number in outcome.values.items()} == {
        "two": 2.0, "E[x]": 3.0, "three": 3.0,
    }  # fmt: skip
    picture = tmp_path / "toys" / "toy" / "toy.svg"
    before = picture.read_bytes()
    picture.unlink()
    calls = len(CALLS)
    assert app.run(["reproduce", "toys/toy", "--out", str(tmp_path), "--redraw", "--quiet"]) == 0
    assert picture.read_bytes() == before
    assert len(CALLS) == calls


class Calls:
    count = 0
    identity = "counts, and decides nothing"


def test_a_part_that_is_finished_is_not_computed_again(tmp_path: Path) -> None:
    calls = Calls()

    def part(run: Run, value: float) -> list[float]:
        def compute() -> dict[str, torch.Tensor]:
            calls.count += 1
            return {"x": torch.full((2,), value)}

        return run.once("a/b", compute)["x"].tolist()

    run, other = Run(TOY, "smoke", tmp_path), Run(TOY, "smoke", tmp_path, seed=1)
    assert part(run, 1.0) == part(run, 1.0) == [1, 1]
    assert calls.count == 1
    assert part(run, 2.0) == [2, 2]  # of one name, and another one
    assert part(other, 1.0) == [1, 1]
    assert calls.count == 3
    assert part(run, 1.0) == [1, 1]
    assert calls.count == 3


def test_the_list_names_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["reproduce", "toys", "--out", str(tmp_path), "--quiet"]) == 130
    capsys.readouterr()
    assert app.run(["reproduce", "list", "--out", str(tmp_path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["outcome"]["lines"][0]["criterion"]["paper"] == 2.1
    assert second["outcome"] is None
    assert app.run(["reproduce", "--out", str(tmp_path)]) == 0
    header, first_line, second_line, hint = capsys.readouterr().out.splitlines()
    assert header.split() == ["study", "smoke", "small", "paper", "here", "source"]
    assert first_line.split() == [
        *("toys/toy", "4", "s", "10", "min", "–", "smoke", "2/2", "toys", "sec.", "1,", "fig.", "1")
    ]
    assert second_line.split()[0] == "toys/stops"
    assert "curvescope reproduce show NAME" in hint


def test_an_interrupted_entry_leaves_nothing_half_written(tmp_path: Path) -> None:
    assert app.run(["reproduce", "toys/stops", "--out", str(tmp_path), "--quiet"]) == 130
    assert load(tmp_path, "toys/stops") is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["toys/tay"], "there is no study 'toys/tay'; near it are toys/toy"),
        (["nothing"], "no study 'nothing'; curvescope reproduce list shows all"),
        (["list", "--scale", "bogus"], "--scale must be one of 'smoke', 'small', 'paper'"),
        (["list", "toys"], "list takes no name"),
        (["show"], "show needs the name of a study"),
        (["show", "none"], "there is no study 'none'"),
        (["toys/toy", "--scale", "huge"], "--scale must be one of 'smoke', 'small', 'paper'"),
        (["toys/stops", "--scale", "paper"], "toys/stops has no scale 'paper'; it has smoke"),
        (["toys/stops", "--redraw"], "has no outcome with pictures to draw"),
        (["toys/toy", "--device", "abacus"], "abacus"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert app.run(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_scale_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "toys/toy", "--out", str(tmp_path), "--quiet"]
    assert app.run(arguments) == 0
    assert app.run([*arguments, "--scale", "small"]) == 2
    assert "holds scale 'smoke', seed 0; name another --out" in capsys.readouterr().err


def test_a_damaged_outcome_is_named(tmp_path: Path) -> None:
    place = tmp_path / "toys" / "toy"
    place.mkdir(parents=True)
    (place / "outcome.json").write_text("[]")
    with pytest.raises(CurvescopeError, match="holds no Outcome, but something else"):
        load(tmp_path, "toys/toy")


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "out")
    assert app.run(["reproduce", "toys/toy", "--out", out, "--work", str(tmp_path), "-q"]) == 2
    assert "is not a folder; name another one" in capsys.readouterr().err


def test_everything_about_one_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["reproduce", "show", "toys/toy", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for words in ("toys/toy  toys sec. 1, fig. 1", "Counts.", "10 min, beans", "not in"):
        assert words in shown
    assert app.run(["reproduce", "toys/toy", "--out", str(tmp_path), "--quiet"]) == 0
    capsys.readouterr()
    assert app.run(["reproduce", "show", "toys/toy", "--out", str(tmp_path)]) == 0
    assert "here: smoke 2/2" in capsys.readouterr().out


def test_a_line_is_cut_where_the_terminal_ends() -> None:
    listed = [(TOY, None), (replace(TOY, section="section 1 to 100 " * 9), None)]
    whole, narrow = listing(listed, None), listing(listed, 60)
    assert max(map(len, whole)) > 150
    assert [len(line) for line in narrow if line.endswith("…")] == [60]
    assert narrow[1] == whole[1]
    assert "here" not in whole[0]


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert app.run(["reproduce", "toys", "--out", str(out), "--quiet"]) == 130
    said = capsys.readouterr().err
    kept = f"finished studies are in {out}, finished parts in {out / 'work'}"
    assert said == f"curvescope: interrupted; {kept}: the same command goes on from there\n"
    assert load(out, "toys/toy") is not None
    index = (out / "INDEX.md").read_text()
    assert "[toys/toy](toys/toy/README.md)" in index
    assert "| toys/stops | not computed here | | | | | | | |" in index
    calls = len(CALLS)
    assert app.run(["reproduce", "toys", "--out", str(out), "--quiet"]) == 130
    assert len(CALLS) == calls
    assert app.run(["reproduce", "toys/stops", "--out", str(tmp_path / "new"), "-q"]) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith("nothing was written")


@pytest.mark.parametrize(
    ("moment", "error"),
    [
        ("draw", KeyboardInterrupt()),
        ("markdown", OSError(28, "No space left on device")),
    ],
)
def test_stopped_while_writing_it_leaves_the_old_entry_or_none(
    moment: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Pictures, page and outcome belong together: none of a new run lies beside an old one's."""

    def stop(*arguments: object, **settings: object) -> None:
        raise error

    arguments = ["reproduce", "toys/toy", "--out", str(tmp_path), "--quiet"]
    code = 130 if isinstance(error, KeyboardInterrupt) else 2
    with monkeypatch.context() as patch:
        patch.setattr(reproduction, moment, stop)
        assert app.run(arguments) == code
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert app.run(arguments) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "toys").rglob("*.*")}
    with monkeypatch.context() as patch:
        patch.setattr(reproduction, moment, stop)
        assert app.run([*arguments, "--again"]) == code
    assert {path: path.read_bytes() for path in (tmp_path / "toys").rglob("*.*")} == before
    assert "Traceback" not in capsys.readouterr().err


def test_stopped_before_the_index_the_next_command_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    arguments = ["reproduce", "toys/toy", "--out", str(tmp_path), "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(reproduction, "index", stop)
        assert app.run(arguments) == 130
    assert load(tmp_path, "toys/toy") is not None
    assert not (tmp_path / "INDEX.md").exists()
    assert app.run(arguments) == 0
    assert "[toys/toy]" in (tmp_path / "INDEX.md").read_text()
    assert len(CALLS) == 1


@pytest.mark.parametrize("option", ["--out", "--work"])
def test_two_processes_do_not_write_into_one_folder(tmp_path: Path, capsys, option: str) -> None:
    places = {"--out": tmp_path / "out", "--work": tmp_path / "work"}
    arguments = [str(part) for pair in places.items() for part in pair]
    with held(places[option]):
        assert app.run(["reproduce", "toys/toy", *arguments, "--quiet"]) == 2
        assert "another process is working here" in capsys.readouterr().err
        assert CALLS == []
    (places["--out"] / "toys" / "toy" / ".part-killed").mkdir(parents=True)
    assert app.run(["reproduce", "toys/toy", *arguments, "--quiet"]) == 0
    assert not [file for file in tmp_path.rglob("*") if file.name.startswith((".part", ".lock"))]


def test_out_and_work_may_be_one_folder(tmp_path: Path) -> None:
    place = str(tmp_path)
    assert app.run(["reproduce", "toys/toy", "--out", place, "--work", place, "--quiet"]) == 0


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    arguments = ["reproduce", "toys", "--scale", "small", "--out", str(out), "--dry-run"]
    assert app.run(arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "toys/toy: to be computed",
        "  small  10 min, beans: F-2^2 on peas",
        "toys/stops: has no scale 'small'",
    ]
    assert CALLS == []
    assert not out.exists()


def test_the_table_and_the_index_of_a_folder(tmp_path: Path, capsys) -> None:
    assert app.run(["reproduce", "toys/toy", "--out", str(tmp_path), "--quiet"]) == 0
    capsys.readouterr()
    assert app.run(["reproduce", "table", "--out", str(tmp_path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["number"], first["status"]) == ("two", "matched")
    assert (second["number"], second["status"]) == ("a million", "not computed")
    page = tmp_path / "toys" / "toy" / "README.md"
    before = page.read_text()
    (page.parent / "notes.md").write_text("Soaked overnight.")
    assert app.run(["reproduce", "index", "--out", str(tmp_path)]) == 0
    assert page.read_text() == f"{before}\nSoaked overnight.\n"
    assert app.run(["reproduce", "toys/toy", "--out", str(tmp_path), "--again", "-q"]) == 0
    assert "Soaked overnight." in page.read_text()
    assert (page.parent / "notes.md").exists()
