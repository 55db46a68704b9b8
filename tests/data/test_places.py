"""Where files are looked for: the order of the roots, and the layouts that people have."""

import os
import sys
from pathlib import Path

import pytest

from curvescope.data import dataset
from curvescope.data.places import MissingFiles, cache_folder, find, roots
from curvescope.data.sources import SOURCES
from curvescope.errors import CurvescopeError
from tests.data.builders import packed_tar, write

LAYOUTS = ["mnist", "MNIST/raw", "MNIST", "."]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_mnist(tmp_path: Path, mnist, layout: str, zipped: bool) -> None:
    contents, arrays = mnist
    write(tmp_path / layout, contents, zipped=zipped)
    data = dataset("mnist", root=tmp_path, split="test")
    assert data.y.tolist() == arrays["test"][1].tolist()


@pytest.mark.parametrize(
    "layout", ["cifar-10/cifar-10-batches-py", "cifar-10-batches-py", "cifar-10", "CIFAR10", "."]
)
def test_layouts_of_cifar(tmp_path: Path, cifar, layout: str) -> None:
    contents, arrays = cifar
    write(tmp_path / layout, contents)
    assert dataset("cifar-10", root=tmp_path).y.tolist() == arrays["train"][1].tolist()


@pytest.mark.parametrize("layout", ["cifar-10", "."])
def test_the_archive_of_cifar_is_read_in_place(tmp_path: Path, cifar, layout: str) -> None:
    contents, arrays = cifar
    members = {f"cifar-10-batches-py/{name}": raw for name, raw in reversed(contents.items())}
    folder = tmp_path / layout
    folder.mkdir(exist_ok=True)
    (folder / "cifar-10-python.tar.gz").write_bytes(packed_tar(members))
    for split, (_, labels) in arrays.items():
        assert dataset("cifar-10", root=tmp_path, split=split).y.tolist() == labels.tolist()
    assert [path.name for path in folder.iterdir()] == ["cifar-10-python.tar.gz"]


def test_a_plain_file_is_taken_before_its_gzipped_twin(tmp_path: Path, mnist) -> None:
    contents, _ = mnist
    write(tmp_path / "mnist", contents)
    write(tmp_path / "mnist", dict.fromkeys(contents, b"not looked at"), zipped=True)
    assert len(dataset("mnist", root=tmp_path)) == 60


def test_a_folder_of_another_set_is_passed_over(tmp_path: Path, mnist, fashion) -> None:
    write(tmp_path / "fashion-mnist", fashion[0])
    folders = [tmp_path / "fashion-mnist"]
    assert find(SOURCES["mnist"], "train", folders) is None
    assert find(SOURCES["fashion-mnist"], "train", folders) is not None
    write(tmp_path / "FashionMNIST" / "raw", fashion[0])
    assert find(SOURCES["mnist"], "train", [tmp_path / "FashionMNIST" / "raw"]) is None


def test_one_split_is_enough_for_that_split(tmp_path: Path, mnist) -> None:
    contents, _ = mnist
    write(tmp_path, {name: raw for name, raw in contents.items() if name.startswith("t10k")})
    assert len(dataset("mnist", root=tmp_path, split="test")) == 30
    with pytest.raises(MissingFiles, match="train-images-idx3-ubyte and train-labels"):
        dataset("mnist", root=tmp_path)
    with pytest.raises(MissingFiles, match="train-images-idx3-ubyte and train-labels"):
        dataset("mnist", root=tmp_path, split="test", normalize="channel")


# Roots --------------------------------------------------------------------------------


def test_root_then_variable_then_cache(tmp_path: Path, monkeypatch, mnist, cache: Path) -> None:
    contents, _ = mnist
    here, there = tmp_path / "here", tmp_path / "there"
    monkeypatch.setenv("CURVESCOPE_DATA", str(there))
    for folder in (here, there):
        folder.mkdir()
    assert roots("test", here) == [here, there, cache / "data"]
    for folder in (cache / "data", there, here):
        write(folder / "mnist", contents)
        place = find(SOURCES["mnist"], "train", roots("test", here))
        assert place is not None
        assert place.path == folder / "mnist"
    assert len(dataset("mnist")) == 60


def test_a_relative_root_and_a_home_are_understood(tmp_path: Path, monkeypatch, mnist) -> None:
    write(tmp_path / "data" / "mnist", mnist[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(dataset("mnist", root="data")) == 60
    assert roots("test", "data")[0] == tmp_path / "data"
    if os.name == "posix":
        assert roots("test", "~/data")[0] == tmp_path / "data"


@pytest.mark.skipif(sys.platform != "linux", reason="the convention of Linux")
@pytest.mark.parametrize("xdg", [None, "", "relative"])
def test_the_cache_follows_the_convention(monkeypatch, tmp_path: Path, xdg: str | None) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if xdg is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert cache_folder() == tmp_path / ".cache" / "curvescope"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("darwin", {}, "Library/Caches/curvescope"),
        ("win32", {}, "AppData/Local/curvescope/Cache"),
        ("win32", {"LOCALAPPDATA": "{home}/local"}, "local/curvescope/Cache"),
    ],
)
def test_the_cache_of_other_platforms(monkeypatch, tmp_path, platform, variables, expected) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    assert cache_folder() == tmp_path / expected


# What is missing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "mnist",
            r"train-images-idx3-ubyte and train-labels-idx1-ubyte \(plain or .gz\) not found",
        ),
        ("mnist-2-R", r"put the files into {root}/mnist, or run: curvescope data fetch mnist \(1"),
        ("cifar-10", "data_batch_1 … data_batch_5 or cifar-10-python.tar.gz not found in {root}, "),
        ("cifar-100", "{root}/cifar-100, or run: curvescope data fetch cifar-100"),
        ("cifar-100-subset", r"or cut the same images .* the first 40 of each class"),
    ],
)
def test_what_is_missing_and_what_to_do_is_one_sentence(tmp_path: Path, name, said) -> None:
    with pytest.raises(MissingFiles, match=said.format(root=tmp_path)) as caught:
        dataset(name, root=tmp_path, seed=0)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", ["{here}/nowhere", "{here}/file", ""])
def test_a_root_that_is_no_folder_is_a_mistake(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CurvescopeError, match="root must be a folder that exists, got"):
        dataset("mnist", root=root.format(here=tmp_path))


def test_a_folder_without_access_is_an_empty_one(tmp_path: Path, mnist, monkeypatch) -> None:
    def denied(path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path / "mnist", mnist[0])
    monkeypatch.setattr(os, "stat", denied)
    assert find(SOURCES["mnist"], "train", [tmp_path]) is None
