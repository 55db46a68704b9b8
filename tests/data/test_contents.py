"""Verification on first use, its memory, and files that are not what they should be."""

import gzip
import json
import os
from pathlib import Path

import pytest

from curvescope.data import contents as module
from curvescope.data import dataset, verify
from curvescope.data.sources import SOURCES
from curvescope.errors import CurvescopeError
from tests.data.builders import everything, packed, packed_tar, write

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def one_sentence(error: BaseException) -> bool:
    return "\n" not in str(error)


# Damage -------------------------------------------------------------------------------

DAMAGES = {
    "cut short": lambda raw: raw[:-1],
    "changed": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "longer": lambda raw: raw + b"\x00",
    "empty": lambda raw: b"",
    "foreign": lambda raw: b"<html>404</html>",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plain_file_is_refused(tmp_path: Path, cache: Path, mnist, damage: str) -> None:
    contents = dict(mnist[0])
    contents[LABELS] = DAMAGES[damage](contents[LABELS])
    write(tmp_path / "mnist", contents)
    before = everything(tmp_path)
    said = f"{LABELS} is not the published file, it is cut short, changed or of another data set"
    with pytest.raises(CurvescopeError, match=said) as caught:
        dataset("mnist", root=tmp_path)
    assert one_sentence(caught.value)
    assert "curvescope data fetch mnist" in str(caught.value)
    assert everything(tmp_path) == before
    assert not cache.exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw: packed(raw)[:-12], r"\.gz cannot be read \(Compressed file ended"),
        (lambda raw: packed(raw)[:5], r"\.gz cannot be read \("),
        (
            lambda raw: packed(raw)[:30] + b"\xff" * 20 + packed(raw)[50:],
            "cannot be|is not the",
        ),
        (lambda raw: b"<html>404</html>", r"\.gz cannot be read \(Not a gzipped file"),
        (lambda raw: packed(raw + b"\x00"), "is not the published file"),
        (lambda raw: packed(raw[::-1]), "is not the published file"),
        (lambda raw: b"", "is not the published file|cannot be read"),
    ],
)
def test_a_damaged_gzipped_file_is_refused(
    tmp_path: Path, cache: Path, mnist, damage, said
) -> None:
    contents = mnist[0]
    write(tmp_path / "mnist", contents, zipped=True)
    (tmp_path / "mnist" / f"{IMAGES}.gz").write_bytes(damage(contents[IMAGES]))
    with pytest.raises(CurvescopeError, match=said) as caught:
        dataset("mnist", root=tmp_path)
    assert one_sentence(caught.value)
    assert not cache.exists()


def test_a_file_of_the_other_set_is_refused(tmp_path: Path, mnist, fashion) -> None:
    write(tmp_path / "mnist", fashion[0])
    with pytest.raises(CurvescopeError, match="of another data set"):
        dataset("mnist", root=tmp_path)


def test_a_gzipped_file_that_unfolds_without_end_is_refused(tmp_path, mnist, monkeypatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 10_000)
    write(tmp_path / "mnist", mnist[0])
    (tmp_path / "mnist" / IMAGES).unlink()
    (tmp_path / "mnist" / f"{IMAGES}.gz").write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(CurvescopeError, match="is not a file of mnist, it is far too long"):
        dataset("mnist", root=tmp_path)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, mnist, monkeypatch) -> None:
    write(tmp_path / "mnist", mnist[0])

    def denied(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(CurvescopeError, match=rf"{IMAGES} cannot be read \(Permission denied\)"):
        dataset("mnist", root=tmp_path)


ARCHIVE = "cifar-10-python.tar.gz"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw: raw[: len(raw) // 2], r"tar.gz cannot be read \("),
        (lambda raw: raw[:1], r"tar.gz cannot be read \("),
        (lambda raw: b"", r"tar.gz cannot be read \("),
        (lambda raw: b"<html>404</html>", r"tar.gz cannot be read \("),
        (lambda raw: packed(b"no archive" * 100), r"tar.gz cannot be read \("),
        (lambda raw: packed_tar({"readme": b""}), "does not hold cifar-10-batches-py/data_batch_1"),
    ],
)
def test_a_damaged_archive_is_refused(tmp_path: Path, cache: Path, cifar, damage, said) -> None:
    members = {f"cifar-10-batches-py/{name}": raw for name, raw in cifar[0].items()}
    (tmp_path / ARCHIVE).write_bytes(damage(packed_tar(members)))
    with pytest.raises(CurvescopeError, match=said) as caught:
        dataset("cifar-10", root=tmp_path)
    assert one_sentence(caught.value)
    assert not cache.exists()


def test_a_changed_member_of_an_archive_is_refused(tmp_path: Path, cifar) -> None:
    members = {f"cifar-10-batches-py/{name}": raw for name, raw in cifar[0].items()}
    members["cifar-10-batches-py/data_batch_4"] += b"\x00"
    (tmp_path / ARCHIVE).write_bytes(packed_tar(members))
    with pytest.raises(CurvescopeError, match=r"data_batch_4 in .*tar.gz is not the published"):
        dataset("cifar-10", root=tmp_path)
    assert len(dataset("cifar-10", root=tmp_path, split="test")) == 20


def test_a_damaged_subset_is_refused(tmp_path: Path, subset, monkeypatch) -> None:
    ((name, raw),) = subset[0].items()
    write(tmp_path, {name: raw[:-100]})
    with pytest.raises(CurvescopeError, match=r"is not the published file.*by the original"):
        dataset("cifar-100-subset", root=tmp_path)


# Memory -------------------------------------------------------------------------------


@pytest.fixture
def compared(monkeypatch) -> list[str]:
    """The files whose checksum was computed."""
    seen: list[str] = []
    original = module._compare

    def compare(where, source, file, shown, raw) -> None:
        seen.append(file.name)
        original(where, source, file, shown, raw)

    monkeypatch.setattr(module, "_compare", compare)
    return seen


def test_a_file_is_compared_once(tmp_path: Path, mnist, compared: list[str], cache: Path) -> None:
    write(tmp_path / "mnist", mnist[0], zipped=True)
    first = dataset("mnist", root=tmp_path)
    assert compared == [IMAGES, LABELS]
    again = dataset("mnist", root=tmp_path)
    assert compared == [IMAGES, LABELS]
    assert again.X.equal(first.X)
    assert [path.name for path in cache.iterdir()] == ["verified.json"]


def test_members_of_an_archive_are_compared_once(tmp_path: Path, cifar, compared) -> None:
    members = {f"cifar-10-batches-py/{name}": raw for name, raw in cifar[0].items()}
    (tmp_path / ARCHIVE).write_bytes(packed_tar(members))
    for _ in range(2):
        dataset("cifar-10", root=tmp_path)
    assert compared == [f"data_batch_{i}" for i in range(1, 6)]
    (tmp_path / ARCHIVE).write_bytes(packed_tar({**members, "readme": b"longer"}))
    dataset("cifar-10", root=tmp_path)
    assert len(compared) == 10


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_moved_is_compared_again(tmp_path: Path, mnist, change: str) -> None:
    write(tmp_path / "mnist", mnist[0])
    dataset("mnist", root=tmp_path)
    path = tmp_path / "mnist" / LABELS
    stat = path.stat()
    raw = path.read_bytes()
    path.write_bytes(raw + b"\x00" if change == "size" else raw[:-1] + bytes([raw[-1] ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + (change == "time")))
    with pytest.raises(CurvescopeError, match="is not the published file"):
        dataset("mnist", root=tmp_path)


def test_a_change_that_keeps_size_and_time_is_still_parsed_with_care(tmp_path, cifar) -> None:
    write(tmp_path, cifar[0])
    dataset("cifar-10", root=tmp_path, split="test")
    path = tmp_path / "test_batch"
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"cnumpy\nndarray", b"cos\nspawnlp_no__"[:14]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    with pytest.raises(CurvescopeError, match=r"test_batch': asks for os\.spawnlp_no"):
        dataset("cifar-10", root=tmp_path, split="test")
    with pytest.raises(CurvescopeError, match="is not the published file"):
        verify("cifar-10", tmp_path)


@pytest.mark.parametrize("stored", ["", "{", "[]", '{"a": 1}', "\udc80"])
def test_a_damaged_memory_is_forgotten(tmp_path: Path, cache: Path, mnist, stored: str) -> None:
    write(tmp_path / "mnist", mnist[0])
    cache.mkdir()
    record = cache / "verified.json"
    record.write_bytes(stored.encode("utf-8", "surrogateescape"))
    assert len(dataset("mnist", root=tmp_path)) == 60
    assert str(tmp_path / "mnist" / LABELS) in json.loads(record.read_text())


def test_a_cache_that_cannot_be_written_is_harmless(tmp_path: Path, mnist, monkeypatch) -> None:
    write(tmp_path / "mnist", mnist[0])
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    before = everything(tmp_path)
    assert len(dataset("mnist", root=tmp_path)) == 60
    assert everything(tmp_path) == before


def test_what_others_noted_is_kept(tmp_path: Path, cache: Path, mnist, fashion) -> None:
    write(tmp_path / "mnist", mnist[0])
    write(tmp_path / "fashion-mnist", fashion[0])
    dataset("mnist", root=tmp_path)
    dataset("fashion-mnist", root=tmp_path)
    assert len(json.loads((cache / "verified.json").read_text())) == 4


# Verification on request --------------------------------------------------------------


def test_verify_reads_everything_again(tmp_path: Path, mnist, compared: list[str]) -> None:
    write(tmp_path / "mnist", mnist[0])
    for _ in range(2):
        files = verify("mnist", tmp_path)
    assert files == [str(tmp_path / "mnist" / name) for name in mnist[0]]
    assert compared == [*mnist[0], *mnist[0]]


def test_verify_takes_one_split_and_names_a_missing_set(tmp_path: Path, mnist) -> None:
    contents = {name: raw for name, raw in mnist[0].items() if name.startswith("t10k")}
    write(tmp_path, contents)
    assert len(verify("mnist", tmp_path)) == 2
    with pytest.raises(CurvescopeError, match=r"^verify\('cifar-10'\): data_batch_1 … "):
        verify("cifar-10", tmp_path)
    assert verify("gaussian-mixture-C2-D3-t1") == []


def test_the_catalog_is_complete() -> None:
    for source in SOURCES.values():
        assert set(source.files) == set(source.sizes) == {"train", "test"}
        sums = [file.md5 for files in source.files.values() for file in files]
        sums += [download.md5 for download in source.downloads]
        assert all(len(bytes.fromhex(checksum)) == 16 for checksum in sums)
        assert bool(source.mirrors) == bool(source.downloads)
        assert all(mirror.endswith("/") for mirror in source.mirrors)
