"""Folders for one process and one configuration; what a checkpoint belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from curvescope import io
from curvescope.errors import CurvescopeError
from tests.kills import killed_after, operations_of


@dataclass(frozen=True)
class Plan:
    steps: int
    seed: int = 0


@dataclass(frozen=True)
class Other:
    steps: int


def entries(folder: Path) -> list[str]:
    return sorted(str(entry.relative_to(folder)) for entry in folder.rglob("*"))


def work(folder: Path) -> None:
    with io.claimed(folder / "runs" / "a", Plan(3)) as place:
        (place / "result").write_text("3")


def test_what_is_empty_is_left_as_it_was_found(tmp_path: Path) -> None:
    with io.held(tmp_path / "a" / "b"), io.claimed(tmp_path / "c" / "d", Plan(3)) as place:
        assert entries(place) == [".lock", "config.json"]
    assert entries(tmp_path) == []
    (tmp_path / "mine").mkdir()
    with io.claimed(tmp_path / "mine", Plan(3)):
        pass
    assert entries(tmp_path) == ["mine"]


def test_one_kind_and_configuration(tmp_path: Path) -> None:
    work(tmp_path)
    place = tmp_path / "runs" / "a"
    before = entries(tmp_path)
    work(tmp_path)
    for config, words in (
        (Plan(4), r"another configuration \(steps is 3 there and 4 here\); name another folder"),
        (Other(3), "holds no Other, but a Plan"),
    ):
        with pytest.raises(CurvescopeError, match=words), io.claimed(place, config):
            pass
    with (
        pytest.raises(CurvescopeError, match="holds no Other"),
        io.claimed(place, Other(3), replace=True),
    ):
        pass
    assert entries(tmp_path) == before
    with io.claimed(place, Plan(4), replace=True):
        assert entries(place) == [".lock", "config.json"]


def test_nothing_foreign_is_touched(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("dear diary")
    for place, words in (
        (tmp_path, "neither empty nor a run directory"),
        (tmp_path / "diary", "is a file; name a folder"),
        (tmp_path / "diary" / "below", r"cannot be used \(Not a directory\)"),
    ):
        with pytest.raises(CurvescopeError, match=words), io.claimed(place, Plan(3), replace=True):
            pass
    assert entries(tmp_path) == ["diary"]


def test_one_process_at_a_time_even_in_one_process(tmp_path: Path) -> None:
    with io.claimed(tmp_path, Plan(3)) as place:
        (place / "result").touch()
        assert io.busy(place)
        for claim in (io.claimed(place, Plan(3)), io.held(place)):
            with pytest.raises(CurvescopeError, match="another process is working here"), claim:
                pass
        assert io.busy(place), "the second one has taken the lock away"
    assert not io.busy(place)
    assert entries(tmp_path) == ["config.json", "result"]


def test_a_lock_that_was_removed_and_made_anew_is_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and taking the file its holder may remove it, and another one make it."""
    take, times = io.lock.take, []

    def too_late(handle: int) -> None:
        if not times:
            (tmp_path / ".lock").unlink()
            (tmp_path / ".lock").touch()
        times.append(handle)
        take(handle)

    monkeypatch.setattr(io.lock, "take", too_late)
    with io.locked(tmp_path):
        monkeypatch.undo()
        assert len(times) == 2
        assert io.busy(tmp_path)
    assert entries(tmp_path) == []


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    for operations in range(operations_of(tmp_path / "whole", work)):
        folder = tmp_path / str(operations)
        with killed_after(folder, operations):
            work(folder)
        work(folder)
        assert entries(folder) == ["runs", "runs/a", "runs/a/config.json", "runs/a/result"]


def test_differences_are_found_at_every_depth() -> None:
    there = {"a": 1, "b": {"c": [1, 2], "d": None}, "code": "0" * 64}
    here = {"a": 1, "b": {"c": [1, 3]}, "e": "x", "code": "#" + "1" * 64}
    assert io.differences(there, here) == [
        "`b.c` is [1, 2] there and [1, 3] here",
        "`code` is another one",
        "`e` is None there and 'x' here",
    ]
    assert io.differences(there, json.loads(json.dumps(there))) == []


def test_a_checkpoint_belongs_to_all_that_decides(tmp_path: Path) -> None:
    def place(*belongs: dict[str, object]) -> io.Checkpoint:
        return io.Checkpoint(tmp_path / "state", *belongs, where="work", words={"plan": "{here}!"})

    start = torch.ones(2)
    belongs: list[dict[str, object]] = [{"task": "a"}, {"tol": 0.1, "start": start}, {"plan": "p"}]
    assert place(*belongs).load() is None
    place(*belongs).save({"x": start, "y": start[:1]}, {"done": 3})
    saved = place(*belongs).load()
    assert saved is not None
    assert (saved.notes, list(saved.tensors)) == ({"done": 3}, ["x", "y"])
    before = (tmp_path / "state").read_bytes()
    for other, words in (
        ([{"task": "b"}, {"tol": 0.2}, {"plan": "q"}], r"\(task is 'a' there and 'b' here\)"),
        ([{"task": "a"}, {"tol": 0.2, "start": start}, {"plan": "q"}], r"\(tol is 0.1 there and 0"),
        ([{"task": "a"}, {"tol": 0.1, "start": 2 * start}, {"plan": "p"}], "start is another one"),
        ([{"task": "a"}, {"tol": 0.1, "start": start}, {"plan": "q"}], r"\(q!\)"),
        ([{"task": "a"}, {"tol": 0.1, "start": start}], r"plan"),
    ):
        with pytest.raises(CurvescopeError, match=f"belongs to another piece of work .*{words}"):
            place(*other).load()
    assert (tmp_path / "state").read_bytes() == before
    io.write_tensors(tmp_path / "state", {"x": start}, {"format": "curvescope checkpoint 1"})
    with pytest.raises(CurvescopeError, match=r"work: .* was written by another version; give"):
        place(*belongs).load()
    place(*belongs).remove()
    assert place(*belongs).load() is None
