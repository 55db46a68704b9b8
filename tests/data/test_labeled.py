"""The container: its views, sub-samples, and what it refuses."""

import dataclasses
import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from curvescope.data import Dataset, dataset
from curvescope.errors import CurvescopeError


@pytest.fixture
def data(generator) -> Dataset:
    X = torch.randn(23, 1, 3, 2, generator=generator)
    return Dataset(X, torch.arange(23) % 4, classes=4, name="mine", split="test")


def test_its_parts(data: Dataset) -> None:
    assert len(data) == 23
    assert data.tensors == (data.X, data.y)
    assert data.input_shape == (1, 3, 2)
    assert repr(data) == (
        "Dataset('mine', test: 23 samples of shape 1×3×2, 4 classes, float32 on cpu)"
    )
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
        data.X = data.X + 1  # type: ignore[misc]


def test_batches_are_views_in_order(data: Dataset) -> None:
    batches = data.batches(10)
    assert [len(y) for _, y in batches] == [10, 10, 3]
    assert torch.cat([X for X, _ in batches]).equal(data.X)
    assert torch.cat([y for _, y in batches]).equal(data.y)
    assert batches[1][0].data_ptr() == data.X[10:].data_ptr()
    assert len(data.batches(100)) == 1
    with pytest.raises(CurvescopeError, match="size must be an integer of at least 1, got 0"):
        data.batches(0)


def test_a_sub_sample_keeps_everything_else(data: Dataset) -> None:
    few = data.per_class(2)
    assert few.X.equal(data.X[:8])
    assert few.y.equal(data.y[:8])
    assert (few.name, few.split, few.classes) == ("mine", "test", 4)
    random = data.per_class(2, seed=1)
    assert random.X.equal(data.per_class(2, seed=1).X)
    assert not random.X.equal(data.per_class(2, seed=2).X)
    assert random.y.bincount().tolist() == [2] * 4
    with pytest.raises(CurvescopeError, match=r"Dataset\.per_class: .* class 3 has 5"):
        data.per_class(6)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_sub_sample_of_the_whole_is_the_one_that_is_loaded(seed: int | None) -> None:
    whole = dataset("digits", split="test").per_class(11, seed=seed)
    loaded = dataset("digits", split="test", per_class=11, seed=seed)
    assert whole.X.equal(loaded.X)
    assert whole.y.equal(loaded.y)


def test_other_tools_take_it(data: Dataset) -> None:
    loader = DataLoader(TensorDataset(*data.tensors), batch_size=8)
    assert sum(len(y) for _, y in loader) == 23


def test_to_another_device(data: Dataset) -> None:
    assert data.to("cpu") is data


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    here = dataset("mnist-6k-2-R", seed=0, per_class=100, normalize="pixel")
    there = dataset("mnist-6k-2-R", seed=0, per_class=100, normalize="pixel", device="cuda")
    assert there.X.device.type == there.y.device.type == "cuda"
    torch.testing.assert_close(there.X.cpu(), here.X)
    assert there.y.cpu().equal(here.y)
    few = there.per_class(3, seed=1)
    assert few.X.is_cuda
    assert few.to("cpu").y.equal(here.per_class(3, seed=1).y)
    mixture = dataset("gaussian-mixture-C3-D4-t1", per_class=5, seed=0, device="cuda")
    assert mixture.X.is_cuda


X, Y = torch.zeros(3, 2), torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": X.int()}, r"X must be floating point .* got int32 \[3, 2\]"),
        ({"X": X.long()[..., None]}, r"X must be floating point .* got int64 \[3, 2, 1\]"),
        ({"X": X[:0], "y": Y[:0]}, r"X must be floating point .* N > 0, got float32 \[0, 2\]"),
        ({"X": X[:, 0]}, r"X must be floating point .* got float32 \[3\]"),
        ({"X": X + math.nan}, "X must be finite, it holds NaN or infinity"),
        ({"X": X - math.inf}, "X must be finite, it holds NaN or infinity"),
        ({"y": Y.int()}, r"y must be int64 \[3\] on cpu.* got int32 \[3\]"),
        ({"y": Y[:2]}, r"y must be int64 \[3\] on cpu.* got int64 \[2\]"),
        ({"y": Y + 1}, r"classes must lie in 0 … 1, got 1 … 2"),
        ({"y": Y - 1}, r"classes must lie in 0 … 1, got -1 … 0"),
        ({"y": Y.to("meta")}, "y must be int64 .* on meta"),
        ({"classes": 0}, "classes must be an integer of at least 1, got 0"),
        ({"split": "all"}, "split must be one of 'train', 'test', got 'all'"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(CurvescopeError, match=rf"^Dataset\('mine'\): {message}"):
        Dataset(**{"X": X, "y": Y, "classes": 2, "name": "mine", **arguments})
