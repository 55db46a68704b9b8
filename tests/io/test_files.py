"""Files: whole or not at all, and a clear sentence for those that are not what they should be."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from math import inf, isnan, nan
from pathlib import Path

import pytest
import torch

from curvescope import io
from curvescope.errors import CurvescopeError


@dataclass(frozen=True)
class Result:
    trace: float
    shape: tuple[int, ...]


def test_json_round_trip(tmp_path: Path) -> None:
    io.write_json(
        tmp_path / "a.json", {"result": Result(0.1, (2, 3)), "where": tmp_path, "µ": None}
    )
    expected = {"result": {"trace": 0.1, "shape": [2, 3]}, "where": str(tmp_path), "µ": None}
    assert io.read_json(tmp_path / "a.json") == expected
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == expected


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    io.write_json(tmp_path / "a.json", [inf, -inf, nan])
    up, down, none = io.read_json(tmp_path / "a.json")
    assert (up, down) == (inf, -inf)
    assert isnan(none)


def test_tensors_round_trip_with_types_views_and_shared_memory(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "base": base,
        "transposed": base.T,
        "part": base[1],
        "double": torch.randn(2, 2, dtype=torch.float64, requires_grad=True),
        "whole": torch.tensor(7),
        "none": torch.empty(0),
        "bits": torch.tensor([True, False]),
    }
    io.write_tensors(tmp_path / "t.safetensors", tensors, {"name": "value", "é": "ü"})
    back, metadata = io.read_tensors(tmp_path / "t.safetensors")
    assert metadata == {"name": "value", "é": "ü"}
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor.detach())


def test_tensors_without_metadata(tmp_path: Path) -> None:
    io.write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(2)})
    assert io.read_tensors(tmp_path / "t.safetensors")[1] == {}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half() -> None:
        with io.atomic(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        write_half()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_readers_see_the_old_file_until_the_new_one_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with io.atomic(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    io.write_json(tmp_path / "a.json", 1)
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("bad", [{"x": torch.ones(2)}, {"x": {1, 2}}, {(1, 2): 3}])
def test_what_has_no_json_form_is_refused_before_writing(tmp_path: Path, bad: object) -> None:
    with pytest.raises(CurvescopeError, match=r"write_json.*convert it to numbers, texts, lists"):
        io.write_json(tmp_path / "a.json", bad)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"a": [1, 2]}, {}, "'a' must be a dense tensor with values"),
        ({"a": torch.empty(2, device="meta")}, {}, "'a' must be a dense tensor with values"),
        ({"a": torch.ones(2)}, {"n": 5}, "metadata 'n' must be a text, got int"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, tensors, metadata, message) -> None:
    with pytest.raises(CurvescopeError, match=message):
        io.write_tensors(tmp_path / "t.safetensors", tensors, metadata)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CurvescopeError, match=r"cannot be written .No such file or directory"):
        io.write_json(tmp_path / "none" / "a.json", 1)


@pytest.mark.parametrize("read", [io.read_json, io.read_tensors, io.read_json_lines])
def test_a_missing_file_is_named(tmp_path: Path, read) -> None:
    with pytest.raises(CurvescopeError, match=r"gone.*cannot be read"):
        read(tmp_path / "gone")


@pytest.mark.parametrize("raw", [b"", b"{", b"[1, 2", b"\xff\xfe\x00", b"{'a': 1}"])
def test_what_is_not_json_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.json").write_bytes(raw)
    with pytest.raises(CurvescopeError, match="is not JSON"):
        io.read_json(tmp_path / "a.json")


def test_truncated_and_foreign_tensor_files_are_named(tmp_path: Path) -> None:
    io.write_tensors(tmp_path / "whole", {"a": torch.ones(1000), "b": torch.ones(10)})
    raw = (tmp_path / "whole").read_bytes()
    torch.save({"a": torch.ones(3)}, tmp_path / "pickle")  # would execute code if it were loaded
    pieces = [raw[:n] for n in (0, 3, 8, 60, len(raw) // 2, len(raw) - 1)]
    for broken in [*pieces, raw + b"tail", (tmp_path / "pickle").read_bytes(), b"\xff" * 64]:
        (tmp_path / "broken").write_bytes(broken)
        with pytest.raises(CurvescopeError, match="is not a complete safetensors file"):
            io.read_tensors(tmp_path / "broken")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for epoch in (1, 2):
        with log.open("a") as file:
            file.write(json.dumps({"epoch": epoch}) + "\n")
    whole = log.read_bytes()
    for cut in range(len(whole) // 2, len(whole)):
        log.write_bytes(whole[:cut])
        assert io.read_json_lines(log) == [{"epoch": 1}]
    log.write_bytes(whole + b'{"epoch": 3, "name": "\xc3')  # torn within a character
    assert io.read_json_lines(log) == [{"epoch": 1}, {"epoch": 2}]


def test_a_damaged_line_before_the_last_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(CurvescopeError, match="a line is not JSON"):
        io.read_json_lines(tmp_path / "log.jsonl")


@pytest.mark.skipif(sys.platform == "win32", reason="devices are files on POSIX")
@pytest.mark.parametrize("read", [io.read_json, io.read_json_lines])
def test_a_device_is_not_read_to_its_end(read) -> None:
    with pytest.raises(CurvescopeError, match="'/dev/zero': is not a regular file"):
        read("/dev/zero")
