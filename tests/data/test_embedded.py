"""The embedded data sets: their contents, and what happens when a file is not what it should be."""

import dataclasses
from importlib import resources

import pytest
import torch

from curvescope.data import dataset, embedded, load_embedded
from curvescope.errors import CurvescopeError


@pytest.mark.parametrize(
    ("name", "split", "per_class"),
    [
        ("mnist-6k", "train", 500),
        ("mnist-6k", "test", 100),
        ("fashion-mnist-3k", "train", 250),
        ("fashion-mnist-3k", "test", 50),
    ],
)
def test_images_are_balanced_and_in_the_unit_interval(name, split: str, per_class: int) -> None:
    X, y = load_embedded(name, split=split)
    assert X.shape == (10 * per_class, 1, 28, 28)
    assert X.dtype == torch.float32
    assert X.min() == 0
    assert X.max() == 1
    assert y.dtype == torch.int64
    assert y.bincount().tolist() == [per_class] * 10


def test_pixels_are_whole_bytes_in_any_precision() -> None:
    X, _ = load_embedded("mnist-6k", split="test", dtype=torch.float64)
    assert X.dtype == torch.float64
    torch.testing.assert_close(255 * X, (255 * X).round(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnist"}, "name must be one of 'mnist-6k', .* got 'mnist'"),
        ({"name": "mnist-6k", "split": "all"}, "split must be one of 'train', 'test', got 'all'"),
        ({"name": "mnist-6k", "dtype": torch.int64}, "must be a floating-point type"),
    ],
)
def test_mistakes_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        load_embedded(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"sha256": "0" * 64}, "is damaged"), ({"file": "gone.npz"}, "is missing")],
)
def test_a_damaged_or_missing_file_is_refused(monkeypatch, change: dict, message: str) -> None:
    changed = dataclasses.replace(embedded.EMBEDDED["mnist-6k"], **change)
    monkeypatch.setitem(embedded.EMBEDDED, "mnist-6k", changed)
    with pytest.raises(CurvescopeError, match=message):
        load_embedded("mnist-6k")


def test_digits_are_those_of_scikit_learn() -> None:
    original = pytest.importorskip("sklearn.datasets").load_digits()
    splits = [dataset("digits", split=split, dtype=torch.float64) for split in ("train", "test")]
    assert [len(data) for data in splits] == [1437, 360]
    X = torch.cat([data.X for data in splits])
    assert X.equal(torch.from_numpy(original.images)[:, None] / 16)
    assert torch.cat([data.y for data in splits]).tolist() == original.target.tolist()


@pytest.mark.parametrize("name", embedded.EMBEDDED)
@pytest.mark.parametrize("split", ["train", "test"])
def test_both_ways_give_the_same_tensors(name: str, split: str) -> None:
    X, y = load_embedded(name, split=split)
    data = dataset(name, split=split)
    assert data.X.equal(X)
    assert data.y.equal(y)
    assert (len(data), data.input_shape) == (
        embedded.EMBEDDED[name].sizes[split],
        embedded.EMBEDDED[name].shape,
    )


def test_the_package_stays_small() -> None:
    files = list(resources.files("curvescope.data").joinpath("files").iterdir())
    names = {file.name for file in files}
    assert names == {"README.md", *(entry.file for entry in embedded.EMBEDDED.values())}
    assert sum(len(file.read_bytes()) for file in files) < 4e6
