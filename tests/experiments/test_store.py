"""Run directories: whole or not at all, finished stages kept, other configurations refused."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.checks import Check
from curvescope.experiments.configuration import Analysis, DataNote, ModelNote, Settings
from curvescope.experiments.store import Outcome, RunDirectory, open_for_work
from curvescope.io import busy, lock, locked


@dataclass(frozen=True)
class Values:
    x: float
    a: torch.Tensor | None = None


CONFIG = Analysis(
    stages=("one", "two"), seed=0, model=ModelNote("net", {}, ""), loss="mse",
    loss_identity="", mode="eval", dtype="float32", data=DataNote("digits", 9, ""), test=None,
    layers=(), settings=Settings(steps=10),
)  # fmt: skip


def outcome(work: Path) -> Outcome[Values]:
    return Outcome(Values(1.5, torch.arange(3.0)), (Check("1 is 1", True),))


def never(work: Path) -> Outcome[Values]:
    raise AssertionError("computed again")


def test_the_configuration_comes_first_and_results_come_back(tmp_path: Path) -> None:
    with open_for_work(tmp_path / "run", CONFIG) as run:
        assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 0
        assert run.stages == ()
        run.compute("one", Values, outcome, seed=7)
    read = RunDirectory(tmp_path / "run")
    assert (read.stages, read.complete) == (("one",), False)
    stage = read.stage("one", Values)
    assert (stage.result.x, stage.seed) == (1.5, 7)
    assert stage.result.a is not None
    assert stage.result.a.tolist() == [0.0, 1.0, 2.0]
    assert stage.environment["torch"] == torch.__version__
    assert read.checks() == [("one", Check("1 is 1", True))]


def test_a_finished_stage_is_not_computed_again(tmp_path: Path) -> None:
    for work in (outcome, never):
        with open_for_work(tmp_path, CONFIG) as run:
            assert run.compute("one", Values, work, seed=7).result.x == 1.5


def test_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        run.compute("one", Values, outcome, seed=0)
    before = sorted(tmp_path.rglob("*"))
    other = replace(CONFIG, settings=Settings(steps=20))
    with (
        pytest.raises(CurvescopeError, match=r"settings\.steps is 10 there and 20 here"),
        open_for_work(tmp_path, other),
    ):
        pass
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.write_text("x"), "is a file"),
        (lambda p: (p.mkdir(), (p / "thesis.tex").write_text("x")), "neither empty nor a run"),
        (lambda p: (p.mkdir(), (p / "config.json").write_text("{}")), "something else"),
        (lambda p: (p.mkdir(), (p / "config.json").write_text("{")), "is not JSON"),
    ],
)
def test_a_foreign_folder_is_left_alone(tmp_path: Path, make, words: str) -> None:
    place = tmp_path / "mine"
    make(place)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CurvescopeError, match=words), open_for_work(place, CONFIG):
        pass
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("stage", ["../out", "/abs", "..", "a/b", "", "x" * 300, "a\0b"])
def test_stages_cannot_lead_out_of_the_directory(stage: str) -> None:
    with pytest.raises(CurvescopeError, match="must be one that a folder may have"):
        replace(CONFIG, stages=(stage,))


def test_another_format_is_refused(tmp_path: Path) -> None:
    config = {"type": "Analysis", "format": 99, "checksum": ""}
    io.write_json(tmp_path / "config.json", config)
    with pytest.raises(CurvescopeError, match="by a later version: it has format 99"):
        RunDirectory(tmp_path)
    io.write_json(tmp_path / "config.json", {"kind": "analysis", "format": 1, "stages": []})
    with pytest.raises(CurvescopeError, match=r"by an earlier version, .*; analyze again"):
        RunDirectory(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    script = (
        "import sys; from curvescope.experiments.store import open_for_work\n"
        "from curvescope.experiments.configuration import *\n"
        f"with open_for_work({str(tmp_path)!r}, {CONFIG!r}):\n"
        "    print('in', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        assert busy(tmp_path)
        with (
            pytest.raises(CurvescopeError, match="another process is working here"),
            open_for_work(tmp_path, CONFIG),
        ):
            pass
        other.kill()  # a killed process leaves no lock behind
        other.wait()
        assert not busy(tmp_path)
        with open_for_work(tmp_path, CONFIG) as run:
            run.compute("one", Values, outcome, seed=0)


def test_someone_who_looks_stops_no_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The viewer holds a lock for an instant: whoever wants it tries again."""
    refused = [True, False]
    take = lock.take

    def taken_at_first(handle: int) -> None:
        if refused.pop(0):
            raise BlockingIOError
        take(handle)

    monkeypatch.setattr(lock, "take", taken_at_first)
    with locked(tmp_path):
        pass
    assert refused == []


def full(*arguments: object, **keywords: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_finished_stages_and_no_half_file(tmp_path: Path, monkeypatch) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        run.compute("one", Values, outcome, seed=0)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with pytest.raises(CurvescopeError, match="No space left on device"):
                run.compute("two", Values, outcome, seed=0)
        with pytest.raises(CurvescopeError, match=r"cannot be written .No space left"):
            run.compute("two", Values, full, seed=0)
        assert run.stages == ("one",)
        assert not list(tmp_path.rglob("*.part"))
        run.compute("two", Values, outcome, seed=0)
    assert RunDirectory(tmp_path).complete


def test_an_error_of_the_users_own_files_is_not_blamed_on_the_folder(tmp_path: Path) -> None:
    def reads(work: Path) -> Outcome[Values]:
        (tmp_path / "image.png").read_bytes()
        raise AssertionError("unreachable")

    with (
        open_for_work(tmp_path / "run", CONFIG) as run,
        pytest.raises(FileNotFoundError, match=r"image\.png"),
    ):
        run.compute("one", Values, reads, seed=0)


def test_a_crash_between_the_two_files_is_an_unfinished_stage(tmp_path: Path, monkeypatch) -> None:
    replace_file = Path.replace

    def replaced_once(self: Path, target: Path) -> Path:
        if Path(target).name == "result.json":
            full()
        return replace_file(self, target)

    with open_for_work(tmp_path, CONFIG) as run:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replaced_once)
            with pytest.raises(CurvescopeError, match="No space"):
                run.compute("one", Values, outcome, seed=0)
        assert (tmp_path / "stages" / "one" / "result.safetensors").exists()
        assert not run.has("one")
        with pytest.raises(CurvescopeError, match="is not finished; finished are: none"):
            run.stage("one", Values)
        assert run.compute("one", Values, outcome, seed=0).result.x == 1.5


def test_arrays_of_another_computation_are_not_mixed_in(tmp_path: Path) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        run.compute("one", Values, outcome, seed=0)
        run.compute("two", Values, lambda work: Outcome(Values(1.5, torch.ones(3))), seed=0)
        first, second = (run.folder(name) / "result.safetensors" for name in ("one", "two"))
        first.write_bytes(second.read_bytes())
        with pytest.raises(CurvescopeError, match="must be the tensor that was stored"):
            run.stage("one", Values)


@pytest.mark.parametrize("text", ["{}", "[]", '{"values": {}, "arrays": null}'])
def test_a_damaged_result_is_one_sentence(tmp_path: Path, text: str) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        run.compute("one", Values, lambda work: Outcome(Values(1.0)), seed=0)
        (run.folder("one") / "result.json").write_text(text)
        with pytest.raises(CurvescopeError, match=r"result\.json.: holds no Stage"):
            run.stage("one", Values)


def test_results_belong_to_their_stage_and_their_run(tmp_path: Path) -> None:
    for name, config in (("a", CONFIG), ("b", replace(CONFIG, seed=1))):
        with open_for_work(tmp_path / name, config) as run:
            run.compute("one", Values, outcome, seed=0)
            run.compute("two", Values, outcome, seed=0)
    a, b = (RunDirectory(tmp_path / name) for name in "ab")
    for folder in (a.folder("two"), b.folder("one")):
        shutil.copytree(folder, a.folder("one"), dirs_exist_ok=True)
        with pytest.raises(CurvescopeError, match="belongs to another stage or another analysis"):
            a.stage("one", Values)


def test_checkpoints_survive_ctrl_c_and_go_when_the_stage_is_finished(tmp_path: Path) -> None:
    def interrupted(work: Path) -> Outcome[Values]:
        (work / "state").write_text("2.5")
        raise KeyboardInterrupt

    def goes_on(work: Path) -> Outcome[Values]:
        return Outcome(Values(float((work / "state").read_text())))

    with open_for_work(tmp_path, CONFIG) as run:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            run.compute("one", Values, interrupted, seed=0)
        assert run.compute("one", Values, goes_on, seed=0).result.x == 2.5
        assert [entry.name for entry in run.folder("one").iterdir()] == ["result.json"]


def test_a_folder_without_permission_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    def denied(*arguments: object, **keywords: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with (
        pytest.raises(CurvescopeError, match=r"cannot be used .Permission denied"),
        open_for_work(tmp_path / "new", CONFIG),
    ):
        pass
