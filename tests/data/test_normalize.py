"""Normalization against numpy in float64."""

import numpy as np
import pytest
import torch

from curvescope.data import dataset
from curvescope.data.normalize import fit
from tests.data.builders import write

AXES = {"pixel": (0,), "channel": (0, 2, 3)}


@pytest.fixture
def pixels(generator) -> torch.Tensor:
    # More than one chunk; the last pixel never changes.
    pixels = torch.randint(256, (2345, 3, 4, 5), generator=generator, dtype=torch.uint8)
    pixels[:, 2, 3, 4] = 17
    return pixels


@pytest.mark.parametrize("kind", AXES)
def test_mean_and_deviation(pixels: torch.Tensor, kind) -> None:
    reference = pixels.numpy().astype(np.float64) / 255
    found = fit(kind, pixels, 255)
    mean = reference.mean(AXES[kind], keepdims=True)[0]
    std = reference.std(AXES[kind], keepdims=True)[0]
    if kind == "pixel":
        assert std[2, 3, 4] < 1e-12
        std[2, 3, 4] = 1
    np.testing.assert_allclose(found.mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(found.std.numpy(), std, rtol=1e-12)
    assert found.mean.shape == found.std.shape == mean.shape


def test_large_sums_do_not_overflow() -> None:
    # 16000 · 784 pixels of 255: count · squares passes 2^63.
    pixels = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8).expand(16_000, 1, 28, 28)
    found = fit("channel", pixels, 255)
    assert found.mean.item() == 1
    assert found.std.item() == 1  # constant: centered, not scaled


@pytest.mark.parametrize("kind", AXES)
def test_the_training_split_becomes_standard(kind) -> None:
    data = dataset("digits", normalize=kind, dtype=torch.float64)
    assert data.normalization.kind == kind
    mean, std = data.X.mean(AXES[kind]), data.X.std(AXES[kind], correction=0)
    assert mean.abs().max() < 1e-12
    constant = std == 0
    torch.testing.assert_close(std[~constant], torch.ones_like(std[~constant]))
    assert bool(constant.any()) == (kind == "pixel")  # the corners of digits are always empty


@pytest.mark.parametrize("kind", AXES)
def test_the_test_split_has_the_constants_of_the_training_split(tmp_path, cifar, kind) -> None:
    contents, arrays = cifar
    write(tmp_path, contents)
    train = arrays["train"][0].astype(np.float64) / 255
    mean = train.mean(AXES[kind], keepdims=True)
    std = train.std(AXES[kind], keepdims=True)
    expected = (arrays["test"][0] / 255 - mean) / std
    data = dataset("cifar-10", root=tmp_path, split="test", normalize=kind, dtype=torch.float64)
    np.testing.assert_allclose(data.X.numpy(), expected, rtol=1e-12, atol=1e-13)
    back = data.normalization.undo(data.X)
    np.testing.assert_allclose(back.numpy(), arrays["test"][0] / 255, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("variant", [{}, {"per_class": 3}, {"name": "digits-2-R", "seed": 0}])
def test_variants_have_the_constants_of_the_whole(split: str, variant: dict) -> None:
    whole = dataset("digits", normalize="channel").normalization
    found = dataset(**{"name": "digits", "split": split, "normalize": "channel", **variant})
    assert found.normalization.mean.equal(whole.mean)
    assert found.normalization.std.equal(whole.std)


def test_nothing_is_done_unless_asked() -> None:
    data = dataset("digits")
    assert (data.normalization.kind, data.X.min(), data.X.max()) == ("none", 0, 1)
    assert data.normalization.undo(data.X).equal(data.X)
