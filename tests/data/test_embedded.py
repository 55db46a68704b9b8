"""The embedded data set: its contents, and what happens when the file is not what it should be."""

import dataclasses

import pytest
import torch

from curvescope import _checks
from curvescope.data import embedded, load_embedded


@pytest.mark.parametrize(("split", "per_class"), [("train", 500), ("test", 100)])
def test_images_are_balanced_and_in_the_unit_interval(split: str, per_class: int) -> None:
    X, y = load_embedded("mnist-6k", split=split)
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
        ({"name": "mnist"}, "name must be one of 'mnist-6k', got 'mnist'"),
        ({"name": "mnist-6k", "split": "all"}, "split must be one of 'train', 'test', got 'all'"),
        ({"name": "mnist-6k", "dtype": torch.int64}, "must be a floating-point type"),
    ],
)
def test_mistakes_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(_checks.CurvescopeError, match=message):
        load_embedded(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"sha256": "0" * 64}, "is damaged"), ({"file": "gone.npz"}, "is missing")],
)
def test_a_damaged_or_missing_file_is_refused(monkeypatch, change: dict, message: str) -> None:
    changed = dataclasses.replace(embedded._EMBEDDED["mnist-6k"], **change)
    monkeypatch.setitem(embedded._EMBEDDED, "mnist-6k", changed)
    with pytest.raises(_checks.CurvescopeError, match=message):
        load_embedded("mnist-6k")
