"""``dataset``: its names, its variants, and the numbers that it gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from curvescope.data import dataset, inventory
from curvescope.data.labels import random_labels, stream
from curvescope.data.names import base_names, parse
from curvescope.data.sources import SOURCES
from curvescope.errors import CurvescopeError
from tests.data.builders import write


@pytest.mark.parametrize("split", ["train", "test"])
def test_idx_files_become_tensors(tmp_path, mnist, split: str) -> None:
    contents, arrays = mnist
    write(tmp_path, contents)
    data = dataset("mnist", root=tmp_path, split=split, dtype=torch.float64)
    pixels, labels = arrays[split]
    np.testing.assert_array_equal(data.X.numpy(), pixels / 255)
    np.testing.assert_array_equal(data.y.numpy(), labels)
    assert (data.classes, data.name, data.split) == (10, "mnist", split)
    assert data.y.dtype == torch.int64


@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar_files_become_tensors(tmp_path, cifar, split: str) -> None:
    contents, arrays = cifar
    write(tmp_path, contents)
    data = dataset("cifar-10", root=tmp_path, split=split)
    pixels, labels = arrays[split]
    torch.testing.assert_close(data.X, torch.tensor(pixels / 255, dtype=torch.float32))
    np.testing.assert_array_equal(data.y.numpy(), labels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_precision(dtype: torch.dtype) -> None:
    exact = dataset("digits", dtype=torch.float64, normalize="channel")
    data = dataset("digits", dtype=dtype, normalize="channel")
    assert data.X.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(data.X.double(), exact.X, rtol=tolerance, atol=tolerance)


# Files that have the right checksum and the wrong contents -------------------------------


def test_counts_and_labels_are_compared_with_the_catalog(tmp_path, mnist, monkeypatch) -> None:
    write(tmp_path, mnist[0])
    tiny = SOURCES["mnist"]
    monkeypatch.setitem(SOURCES, "mnist", replace(tiny, sizes={"train": 61, "test": 30}))
    with pytest.raises(CurvescopeError, match=r"train split must have 61 images \[1, 5, 4\]"):
        dataset("mnist", root=tmp_path)
    monkeypatch.setitem(SOURCES, "mnist", replace(tiny, classes=9))
    with pytest.raises(CurvescopeError, match=r"labels must lie in 0 … 8, the files have 0 … 9"):
        dataset("mnist", root=tmp_path)


# Variants -----------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "test"])
def test_two_classes(tmp_path, mnist, split: str) -> None:
    contents, arrays = mnist
    write(tmp_path, contents)
    data = dataset("mnist-2", root=tmp_path, split=split)
    assert data.classes == 2
    assert data.y.tolist() == [0 if label in (0, 1, 2, 3, 4) else 1 for label in arrays[split][1]]
    assert data.X.equal(dataset("mnist", root=tmp_path, split=split).X)


def test_random_labels_follow_from_the_seed() -> None:
    true = dataset("mnist-6k")
    data = dataset("mnist-6k-R", seed=0)
    assert data.X.equal(true.X)
    assert data.name == "mnist-6k-R"
    expected = random_labels(true.y, 10, stream("", 0, "labels", "train"))
    assert data.y.equal(expected)
    assert not data.y.equal(dataset("mnist-6k-R", seed=1).y)
    # A tenth agrees by chance: 500 ± 21.
    assert abs(int((data.y == true.y).sum()) - 500) < 4 * 21.2
    test = dataset("mnist-6k-R", seed=0, split="test")
    assert not test.y.equal(data.y[:1000])


def test_random_labels_of_two_classes() -> None:
    data = dataset("mnist-6k-2-R", seed=0)
    assert data.classes == 2
    assert data.y.unique().tolist() == [0, 1]
    true = dataset("mnist-6k-2")
    assert abs(int((data.y == true.y).sum()) - 2500) < 4 * 35.4


def test_random_labels_do_not_depend_on_the_sub_sample() -> None:
    whole = dataset("digits-R", seed=5)
    for few in (dataset("digits-R", seed=5, per_class=20), whole.per_class(20)):
        assert few.y.bincount().tolist() == [20] * 10
        rows = {tuple(x.flatten().tolist()): int(y) for x, y in zip(*whole.tensors, strict=True)}
        assert [rows[tuple(x.flatten().tolist())] for x in few.X] == few.y.tolist()


@pytest.mark.parametrize("name", ["digits", "digits-2"])
def test_so_many_of_each_class(name: str) -> None:
    whole, few = dataset(name), dataset(name, per_class=7)
    counts, chosen = dict.fromkeys(range(10), 0), []
    for i, label in enumerate(whole.y.tolist()):
        counts[label] += 1
        if counts[label] <= 7:
            chosen.append(i)
    assert few.X.equal(whole.X[chosen])
    assert few.y.equal(whole.y[chosen])


def test_embedded_subsets_are_the_first_of_each_class() -> None:
    # mnist-6k holds the first 500 of each class of MNIST in their order.
    whole, few = dataset("mnist-6k"), dataset("mnist-6k", per_class=500)
    assert few.X.equal(whole.X)


def test_a_seed_where_nothing_is_random_changes_nothing() -> None:
    assert dataset("digits", seed=3).X.equal(dataset("digits").X)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    dataset("digits-R", seed=0, per_class=3)
    dataset("gaussian-mixture-C2-D3-t1", seed=0, per_class=3)
    assert torch.random.get_rng_state().equal(before)


# Names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("mnist", "mnist"),
        ("MNIST-R", "mnist-R"),
        ("Mnist-2", "mnist-2"),
        ("mnist-6k-2-r", "mnist-6k-2-R"),
        ("CIFAR10-R", "cifar-10-R"),
        ("CIFAR100", "cifar-100"),
        ("FashionMNIST", "fashion-mnist"),
        ("cifar-10-2", "cifar-10-2"),
        ("gaussian-mixture-c10-d100-t3.50", "gaussian-mixture-C10-D100-t3.5"),
        ("gaussian-mixture-C3-D4-t1e2-R", "gaussian-mixture-C3-D4-t100-R"),
    ],
)
def test_names_have_a_normal_form(given: str, normal: str) -> None:
    assert str(parse("test", given)) == normal
    assert str(parse("test", normal)) == normal


@pytest.mark.parametrize(
    "name", ["", "mnis", "mnist-R-2", "mnist-3", "mnist-R-R", "gaussian-mixture", "-R", "-2", 7]
)
def test_an_unknown_name_gets_the_list(name) -> None:
    with pytest.raises(CurvescopeError, match=r"must be one of mnist-6k, .* got") as caught:
        dataset(name)
    assert all(known in str(caught.value) for known in base_names())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "digits-R"}, "needs seed for its random labels"),
        ({"split": "validation"}, "split must be one of 'train', 'test', got 'validation'"),
        ({"normalize": "image"}, "normalize must be one of 'none', 'pixel', 'channel', got"),
        ({"dtype": torch.uint8}, "dtype must be a floating-point type, got torch.uint8"),
        ({"per_class": 200}, "per_class=200 needs 200 samples of each class, class"),
        ({"per_class": 0}, "per_class must be an integer of at least 1, got 0"),
        ({"per_class": 2, "seed": -1}, "seed must be an integer of at least 0, got -1"),
    ],
)
def test_mistakes_are_named(arguments: dict, message: str) -> None:
    arguments = {"name": "digits", **arguments}
    with pytest.raises(CurvescopeError, match=rf"^dataset\('{arguments['name']}'\): {message}"):
        dataset(**arguments)


def test_two_classes_need_ten(tmp_path, subset) -> None:
    write(tmp_path, subset[0])
    with pytest.raises(CurvescopeError, match="-2 means 0–4 against 5–9 and needs ten classes"):
        dataset("cifar-100-subset-2", root=tmp_path)


# The inventory ------------------------------------------------------------------------


def test_the_inventory_tells_what_is_loaded(tmp_path, mnist, cifar, subset) -> None:
    write(tmp_path / "mnist", mnist[0])
    write(tmp_path / "cifar-10-batches-py", cifar[0])
    write(tmp_path, subset[0])
    entries = {entry.name: entry for entry in inventory(tmp_path)}
    assert list(entries) == base_names()
    assert entries["mnist"].location == str(tmp_path / "mnist")
    assert entries["cifar-10"].location == str(tmp_path / "cifar-10-batches-py")
    assert entries["fashion-mnist"].location is None
    for entry in entries.values():
        if entry.location is not None:
            for split, count in (("train", entry.train), ("test", entry.test)):
                data = dataset(entry.name, root=tmp_path, split=split)
                assert (len(data), data.input_shape) == (count, entry.shape)
                assert data.classes == entry.classes
