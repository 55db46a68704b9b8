"""Archives of arrays: judged by their headers, and never anything but numbers."""

from __future__ import annotations

import io as buffers
import os
import random
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from curvescope import io
from curvescope.errors import CurvescopeError


def archive(**arrays: np.ndarray) -> bytes:
    stream = buffers.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


GOOD = archive(X=np.arange(200.0).reshape(20, 10), y=np.arange(20), note=np.array("text"))


def test_arrays_come_back_and_only_the_wanted_ones() -> None:
    assert io.array_headers(GOOD, "here")["X"].shape == (20, 10)
    assert io.read_arrays(GOOD, "here", ["y", "z"]).keys() == {"y"}
    fortran = archive(X=np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert io.read_arrays(fortran, "here")["X"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def bomb(gigabytes: int) -> bytes:
    """A header that tells the truth about very many zeros."""
    stream = buffers.BytesIO()
    count = gigabytes << 30
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        head = buffers.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "|u1", "fortran_order": False, "shape": (count,)}
        )
        with file.open("X.npy", "w", force_zip64=True) as member:
            member.write(head.getvalue())
            for _ in range(gigabytes << 10):
                member.write(bytes(1 << 20))
    return stream.getvalue()


def test_what_expands_without_measure_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "bomb.npz").write_bytes(bomb(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CurvescopeError, match=r"its [\d,]+ bytes expand to 1,073,741,824"):
        io.read_arrays(tmp_path / "bomb.npz", "here")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def patched(offset: int, value: int) -> bytes:
    """The good archive with a byte of every local and central header changed."""
    raw = bytearray(GOOD)
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = -1
        while (at := raw.find(mark, at + 1)) >= 0:
            raw[at + offset + shift] = value
    return bytes(raw)


def lying() -> bytes:
    """A header that promises more numbers than there are."""
    stream = buffers.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        head = buffers.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
        )
        file.writestr("X.npy", head.getvalue() + bytes(64))
    return stream.getvalue()


def twice() -> bytes:
    stream = buffers.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("X.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("X.npy", b"")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (patched(6, 1), "encrypted or compressed in a way that is not read"),
        (patched(8, 97), "encrypted or compressed in a way that is not read"),
        (lying(), "should hold 1,099,511,627,776 numbers, and does not"),
        (twice(), "two arrays have one name"),
        (archive(X=np.array([{}])), "X holds Python objects"),
        (GOOD[:-40], "is not an archive of plain arrays"),
        (b"", "is not an archive of plain arrays"),
    ],
)
def test_an_unsound_archive_is_one_sentence(raw: bytes, words: str) -> None:
    with pytest.raises(CurvescopeError, match=words) as caught:
        io.read_arrays(raw, "here")
    assert "\n" not in str(caught.value)


def test_damage_is_refused_or_harmless() -> None:
    """Data are known by the checksum that zip keeps of each array."""
    whole, source = io.read_arrays(GOOD, "here"), random.Random(0)
    for _ in range(300):
        raw = bytearray(GOOD)
        raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
        try:
            found = io.read_arrays(bytes(raw), "here", whole)
        except CurvescopeError:
            continue
        for name, array in found.items():
            assert np.array_equal(array, whole[name])


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are files on POSIX")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(CurvescopeError, match="is not a regular file"):
        io.read_arrays(tmp_path / "x.npz", "here")
    command = [sys.executable, "-c", "from curvescope.cli import main; main()"]
    arguments = ["train", "F-4", "--data", str(tmp_path / "x.npz")]
    done = subprocess.run([*command, *arguments], capture_output=True, timeout=60)
    assert done.returncode == 2
