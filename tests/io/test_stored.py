"""A dataclass in a file: read as what it says it is, as it was written, or refused."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch
from torch import Tensor

from curvescope import io
from curvescope.certificates.certificate import Certificate
from curvescope.errors import CurvescopeError
from curvescope.experiments.configuration import Analysis
from curvescope.experiments.measured import Measured
from curvescope.studies.outcome import Ledger, Outcome
from curvescope.training.moments import Moments
from curvescope.training.records import Epoch, Training
from curvescope.training.records import Result as Trained

T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    FORMAT: ClassVar[int] = 3
    trace: float
    shape: tuple[int, ...] = (2, 3)


@dataclass(frozen=True)
class Spectrum:
    values: Tensor
    name: str = "H"


@dataclass(frozen=True)
class Stage(Generic[T]):
    result: T
    seed: int = 0


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    io.save(tmp_path / "a.json", Result(1.5))
    stored = json.loads((tmp_path / "a.json").read_text())
    assert (stored["type"], stored["format"], stored["trace"]) == ("Result", 3, 1.5)
    assert io.load(tmp_path / "a.json", Result) == Result(1.5)
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trace": 1.25}, "its checksum is wrong"),
        ({"trace": 15e-1, "more": 0}, "its checksum is wrong"),
        ({"format": 2}, "by an earlier version: it has format 2, this version reads 3"),
        ({"format": 3.0}, "has format 3.0, this version reads 3"),
        ({"type": "Recipe"}, "holds no Result, but a Recipe"),
        ({"type": ["Result"]}, "holds no Result, but something else"),
        ({"checksum": None}, "its checksum is wrong"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    place = tmp_path / "a.json"
    io.save(place, Result(1.5))
    edit(place, **changes)
    with pytest.raises(CurvescopeError, match=words):
        io.load(place, Result, remedy="analyze again")


KINDS = [Analysis, Certificate, Epoch, Ledger, Measured, Moments, Outcome, Training, Trained]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_earlier_or_a_later_version_wrote_is_called_so(kind: type) -> None:
    here = getattr(kind, "FORMAT", 1)
    names = dict.fromkeys(field.name for field in fields(kind))
    header = {"type": kind.__name__, "checksum": ""}
    some = dict(list(names.items())[:2])
    told = {
        "something else": [[], {}, {"colour": 3}, {"format": "PNG"}],
        rf"an earlier version, whose {kind.__name__} this one does not read": [
            {"format": 1}, {"format": "curvescope 1"}, *([some] if len(some) == 2 else []),
        ],
        rf"an earlier version: it has format {here - 1}": [{**header, "format": here - 1}],
        rf"a later version: it has format {here + 1}": [{**header, "format": here + 1, **names}],
    }  # fmt: skip
    for words, files in told.items():
        for stored in files:
            with pytest.raises(CurvescopeError, match=rf"^file: .*{words}.*; make it anew"):
                io.unpack(kind, stored, "file", remedy="make it anew")


def test_a_file_with_a_right_checksum_is_held_against_the_types_all_the_same(
    tmp_path: Path,
) -> None:
    @dataclass(frozen=True)
    class Forged:
        FORMAT: ClassVar[int] = 3
        trace: str
        shape: tuple[int, ...]

    Forged.__name__ = "Result"
    io.save(tmp_path / "a.json", Forged("1.5", (2, 3)))
    with pytest.raises(CurvescopeError, match=r"damaged .'trace' must be a number, got '1.5'"):
        io.load(tmp_path / "a.json", Result)


def test_layout_does_not_matter(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    io.save(place, Result(1.5))
    stored = json.loads(place.read_text())
    place.write_text(json.dumps(stored, indent=8))
    assert io.load(place, Result) == Result(1.5)
    place.write_text(json.dumps(dict(sorted(stored.items()))))  # readers show fields in their order
    with pytest.raises(CurvescopeError, match="its checksum is wrong"):
        io.load(place, Result)


def test_parameters_belong_to_the_type(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    io.save(place, Stage(Result(1.5), 7), Stage[Result])
    assert io.load(place, Stage[Result]).result == Result(1.5)
    assert io.load(place, Stage[Any]).result == {"trace": 1.5, "shape": [2, 3]}
    with pytest.raises(CurvescopeError, match=r"holds no Stage\[Spectrum\], but a Stage\[Result\]"):
        io.load(place, Stage[Spectrum])


def test_tensors_lie_beside_their_file(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    io.save(place, Stage(Spectrum(torch.arange(3.0))), Stage[Spectrum])
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.safetensors"]
    assert io.load(place, Stage[Spectrum]).result.values.tolist() == [0.0, 1.0, 2.0]
    (tmp_path / "a.safetensors").unlink()
    assert io.load(place, Stage[Any]).result["name"] == "H"
    with pytest.raises(CurvescopeError, match=r"a\.safetensors.* cannot be read"):
        io.load(place, Stage[Spectrum])


def test_tensors_of_another_file_are_not_mixed_in(tmp_path: Path) -> None:
    for name, values in (("a", torch.ones(3)), ("b", torch.zeros(3))):
        io.save(tmp_path / f"{name}.json", Spectrum(values))
    (tmp_path / "b.safetensors").replace(tmp_path / "a.safetensors")
    with pytest.raises(CurvescopeError, match="'values' must be the tensor that was stored"):
        io.load(tmp_path / "a.json", Spectrum)


def test_flipped_bits_are_noticed(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    io.save(place, Spectrum(torch.tensor([1.0, float("nan")])))
    for file in (place, io.tensors_beside(place)):
        whole = file.read_bytes()
        for bit in range(0, 8 * len(whole), 7):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            try:
                back = io.load(place, Spectrum)
            except CurvescopeError:
                continue
            assert (back.name, str(back.values)) == ("H", "tensor([1., nan])"), bit
        file.write_bytes(whole)


def test_truncations_are_noticed(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    io.save(place, Spectrum(torch.ones(4)))
    for file in (place, io.tensors_beside(place)):
        whole = file.read_bytes()
        for length in range(0, len(whole.rstrip()), 5):
            file.write_bytes(whole[:length])
            with pytest.raises(CurvescopeError, match=r"is not JSON|safetensors|something else"):
                io.load(place, Spectrum)
        file.write_bytes(whole)


posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are files on POSIX")


@posix
@pytest.mark.parametrize("which", ["a.json", "a.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link", "empty"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, which: str, kind: str) -> None:
    place, bad = tmp_path / "a.json", tmp_path / which
    io.save(place, Spectrum(torch.ones(4)))
    bad.replace(tmp_path / "elsewhere")
    if kind == "pipe":
        os.mkfifo(bad)
    elif kind == "folder":
        bad.mkdir()
    elif kind == "empty":
        bad.touch()
    else:
        bad.symlink_to("/dev/zero" if kind == "device" else tmp_path / "elsewhere")
    words = r"not a regular file|is a folder|is a link|is not JSON|not a complete safetensors"
    with pytest.raises(CurvescopeError, match=words):
        io.load(place, Spectrum)


def test_a_file_of_many_gigabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 36)  # without a block on the disk
    with pytest.raises(CurvescopeError, match="is longer than"):
        io.load(tmp_path / "a.json", Result)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested more than 64 levels"),
        ("[" * 80 + "]" * 80, "nested more than 64 levels"),
        ('{"a":' * 80 + "1" + "}" * 80, "nested more than 64 levels"),
        ('{"n": ' + "1" * 400 + "}", "a number has 400 digits"),
        ('{"n": ' + "1" * 5000 + "}", "a number has 5000 digits"),
        ('{"n": 1e999}', "no float is 1e999"),
        ('{"n": 1, "n": 2}', "'n' stands there twice"),
        ('{"n": "\\ud800"}', "surrogates not allowed"),
        ("\x00", "is not JSON"),
    ],
)
def test_json_of_no_or_more_than_one_meaning_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CurvescopeError, match=words):
        io.read_json(tmp_path / "a.json")


def test_lines_are_checked_one_by_one(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for trace in (1.0, 2.0):
        io.append_line(log, Result(trace))
    assert io.load_lines(log, Result) == [Result(1.0), Result(2.0)]
    whole = log.read_bytes()
    log.write_bytes(whole[:-2])  # the last line is torn
    assert io.load_lines(log, Result) == [Result(1.0)]
    log.write_bytes(whole.replace(b"1.0", b"1.5"))
    with pytest.raises(CurvescopeError, match="its checksum is wrong"):
        io.load_lines(log, Result)


def test_a_field_cannot_bear_a_name_of_the_header(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Named:
        type: str

    with pytest.raises(TypeError, match="'type' is a field of every stored dataclass"):
        io.save(tmp_path / "a.json", Named("x"))


def test_what_could_not_be_read_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    io.save(place, Result(1.5))
    with pytest.raises(CurvescopeError, match=r"save.*'trace' must be a finite number, got nan"):
        io.save(place, replace(Result(1.5), trace=float("nan")))
    assert io.load(place, Result) == Result(1.5)


def test_tensors_from_elsewhere_have_no_checksum_and_ours_do(tmp_path: Path) -> None:
    import safetensors.torch

    foreign = tmp_path / "foreign.safetensors"
    safetensors.torch.save_file({"w": torch.ones(2)}, foreign)
    assert io.read_tensors(foreign)[0]["w"].tolist() == [1.0, 1.0]
    with pytest.raises(CurvescopeError, match="has no checksum"):
        io.read_tensors(foreign, ours=True)
    io.write_tensors(foreign, {"w": torch.ones(2)}, {"note": "x"})
    assert io.read_tensors(foreign, ours=True)[1] == {"note": "x"}
    raw = bytearray(foreign.read_bytes())
    raw[-1] ^= 1
    foreign.write_bytes(raw)
    with pytest.raises(CurvescopeError, match="is damaged, its checksum is wrong"):
        io.read_tensors(foreign)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    left = tmp_path / ".result.json.123.abcd.part"
    left.write_text("{")
    (tmp_path / "result.json").write_text("{}")
    assert io.part_files(tmp_path) == {left}
    io.remove_parts(tmp_path)
    assert os.listdir(tmp_path) == ["result.json"]
