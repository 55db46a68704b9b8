"""Files that belong together are all there or none is; pages are drawn when results change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from curvescope import io
from curvescope.cli.options import check_folder
from curvescope.cli.staging import staged
from curvescope.errors import CurvescopeError


def test_all_files_or_none(tmp_path: Path) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    first.write_text("old")
    last.write_text("old")

    def write() -> None:
        with io.atomic_all(first, last) as (one, two):
            one.write_text("new")
            two.write_text("new")
            assert (first.read_text(), last.read_text()) == ("old", "old")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        write()
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"first": "old", "last": "old"}


def test_a_file_that_cannot_be_made_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    with (
        pytest.raises(CurvescopeError, match=r"none/x.*cannot be written"),
        io.atomic_all(tmp_path / "there", tmp_path / "none" / "x"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_an_error_names_the_place_that_a_staged_file_was_on_its_way_to(tmp_path: Path) -> None:
    with (
        pytest.raises(CurvescopeError, match="cannot be") as caught,
        staged(tmp_path / "out") as fresh,
    ):
        io.write_json(fresh / "none" / "page", {})
    assert caught.value.where == repr(str(tmp_path / "out" / "none" / "page"))


@pytest.mark.parametrize("there", [True, False])
def test_a_staged_folder_is_complete_or_as_it_was(tmp_path: Path, there: bool) -> None:
    place = tmp_path / "a" / "b"
    if there:
        place.mkdir(parents=True)
        (place / "page").write_text("old")
    before = sorted(tmp_path.rglob("*"))

    def write(error: Exception | None) -> None:
        with staged(place, last="page") as fresh:
            (fresh / "page").write_text("new")
            (fresh / "picture").write_text("new")
            if error is not None:
                raise error

    with pytest.raises(OSError, match="full"):
        write(OSError("full"))
    assert sorted(tmp_path.rglob("*")) == before
    assert not there or (place / "page").read_text() == "old"
    write(None)
    assert {p.name: p.read_text() for p in place.iterdir()} == {"page": "new", "picture": "new"}


def test_the_last_file_is_never_older_than_the_others(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "page").write_text("old")
    seen: list[bool] = []
    original = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append((tmp_path / "page").exists())
        return original(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    with staged(tmp_path, last="page") as fresh:
        for name in ("picture", "page", "a"):
            (fresh / name).write_text("new")
    assert seen == [False] * 3


@dataclass(frozen=True)
class Line:
    epoch: int


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CurvescopeError, match=r"none/log.*cannot be written .No such file"):
        io.append_line(tmp_path / "none" / "log", Line(1))


def test_a_folder_for_results_is_checked_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_folder("--out", tmp_path / "new" / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CurvescopeError, match=r"--out .*file' is not a folder; name another"):
            check_folder("--out", wrong)
