"""Run directories: whole or not at all, finished stages kept, other configurations refused."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.experiments import lock, store
from curvescope.experiments.checks import Check
from curvescope.experiments.lock import busy, locked
from curvescope.experiments.store import Outcome, RunDirectory, open_for_work

CONFIG = {"stages": ["one", "two"], "seed": 0, "settings": {"steps": 10}}


def outcome(work: Path) -> Outcome:
    return Outcome({"x": 1.5}, {"a": torch.arange(3.0)}, (Check("1 is 1", True),))


def never(work: Path) -> Outcome:
    raise AssertionError("computed again")


def test_the_configuration_comes_first_and_results_come_back(tmp_path: Path) -> None:
    with open_for_work(tmp_path / "run", CONFIG) as run:
        assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 0
        assert run.stages == ()
        run.compute("one", outcome, seed=7)
    read = RunDirectory(tmp_path / "run")
    assert (read.stages, read.complete) == (("one",), False)
    stage = read.stage("one")
    assert (stage.values, stage.seed) == ({"x": 1.5}, 7)
    assert stage.arrays["a"].tolist() == [0.0, 1.0, 2.0]
    assert stage.environment["torch"] == torch.__version__
    assert read.checks() == [("one", Check("1 is 1", True))]


def test_a_finished_stage_is_not_computed_again(tmp_path: Path) -> None:
    for work in (outcome, never):
        with open_for_work(tmp_path, CONFIG) as run:
            assert run.compute("one", work, seed=7).values == {"x": 1.5}


def test_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    with open_for_work(tmp_path, CONFIG):
        pass
    before = sorted(tmp_path.rglob("*"))
    other = {**CONFIG, "settings": {"steps": 20}}
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


@pytest.mark.parametrize("stages", [["../out"], ["/abs"], [".."], "one", [3], ["a/b"]])
def test_stages_cannot_lead_out_of_the_directory(tmp_path: Path, stages) -> None:
    config = {"kind": "analysis", "format": 1, "stages": stages}
    io.write_json(tmp_path / "config.json", config)
    with pytest.raises(CurvescopeError, match="its stages are"):
        RunDirectory(tmp_path)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    io.write_json(tmp_path / "config.json", {"kind": "analysis", "format": 2, "stages": []})
    with pytest.raises(CurvescopeError, match="has format 2, this version reads 1"):
        RunDirectory(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    script = (
        "import sys; from curvescope.experiments.store import open_for_work\n"
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
            run.compute("one", outcome, seed=0)


def test_someone_who_looks_stops_no_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The viewer holds a lock for an instant: whoever wants it tries again."""
    refused = [True, False]
    take = lock._take

    def taken_at_first(handle: int) -> None:
        if refused.pop(0):
            raise BlockingIOError
        take(handle)

    monkeypatch.setattr(lock, "_take", taken_at_first)
    with locked(tmp_path):
        pass
    assert refused == []


def full(*arguments: object, **keywords: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_finished_stages_and_no_half_file(tmp_path: Path, monkeypatch) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        run.compute("one", outcome, seed=0)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with pytest.raises(CurvescopeError, match="No space left on device"):
                run.compute("two", outcome, seed=0)
        with pytest.raises(CurvescopeError, match=r"cannot be written .No space left"):
            run.compute("two", full, seed=0)
        assert run.stages == ("one",)
        assert not list(tmp_path.rglob("*.part"))
        run.compute("two", outcome, seed=0)
    assert RunDirectory(tmp_path).complete


def test_an_error_of_the_users_own_files_is_not_blamed_on_the_folder(tmp_path: Path) -> None:
    def reads(work: Path) -> Outcome:
        (tmp_path / "image.png").read_bytes()
        raise AssertionError("unreachable")

    with (
        open_for_work(tmp_path / "run", CONFIG) as run,
        pytest.raises(FileNotFoundError, match=r"image\.png"),
    ):
        run.compute("one", reads, seed=0)


def test_a_crash_between_the_two_files_is_an_unfinished_stage(tmp_path: Path, monkeypatch) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        with monkeypatch.context() as patch:
            patch.setattr(store.io, "write_json", full)
            with pytest.raises(OSError, match="No space"):
                run.compute("one", outcome, seed=0)
        assert (tmp_path / "stages" / "one" / "arrays.safetensors").exists()
        assert not run.has("one")
        with pytest.raises(CurvescopeError, match="is not finished; finished are: none"):
            run.stage("one")
        assert run.compute("one", outcome, seed=0).values == {"x": 1.5}


def test_arrays_of_another_computation_are_not_mixed_in(tmp_path: Path) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        run.compute("one", outcome, seed=0)
        run.compute("two", outcome, seed=0)
        first, second = (run.folder(name) / "arrays.safetensors" for name in ("one", "two"))
        first.write_bytes(second.read_bytes())
        with pytest.raises(CurvescopeError, match="of different runs"):
            run.stage("one")


@pytest.mark.parametrize("text", ["{}", "[]", '{"values": {}, "arrays": null}'])
def test_a_damaged_result_is_one_sentence(tmp_path: Path, text: str) -> None:
    with open_for_work(tmp_path, CONFIG) as run:
        run.compute("one", lambda work: Outcome({}), seed=0)
        (run.folder("one") / "result.json").write_text(text)
        with pytest.raises(CurvescopeError, match=r"result\.json is damaged"):
            run.stage("one")


def test_checkpoints_survive_ctrl_c_and_go_when_the_stage_is_finished(tmp_path: Path) -> None:
    def interrupted(work: Path) -> Outcome:
        (work / "state").write_text("here")
        raise KeyboardInterrupt

    def goes_on(work: Path) -> Outcome:
        return Outcome({"from": (work / "state").read_text()})

    with open_for_work(tmp_path, CONFIG) as run:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            run.compute("one", interrupted, seed=0)
        assert run.compute("one", goes_on, seed=0).values == {"from": "here"}
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
