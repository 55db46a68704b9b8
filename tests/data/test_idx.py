"""The IDX reader against headers written by ``struct``."""

import numpy as np
import pytest

from curvescope.data.idx import decode, read_idx
from curvescope.errors import CurvescopeError
from tests.data import builders


@pytest.mark.parametrize("shape", [(3, 5, 4), (7,), (1, 300, 2)])
def test_an_array_comes_back(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(read_idx("here", builders.idx(array), len(shape)), array)


def test_images_get_their_channel() -> None:
    pixels, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([5, 0], np.uint8)
    files = [("a", builders.idx(pixels)), ("b", builders.idx(labels))]
    X, y = decode(files)
    assert X.shape == (2, 1, 3, 4)
    np.testing.assert_array_equal(X[:, 0], pixels)
    np.testing.assert_array_equal(y, labels)


LABELS = builders.idx(np.array([5, 0], np.uint8))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "here: is not an IDX file of labels, its header is missing"),
        (LABELS[:6], "here: is not an IDX file of labels, its header is 00 00 08 01"),
        (b"\x1f\x8b\x08\x00" + LABELS, "its header is 1f 8b 08 00"),
        (b"\x00\x00\x0d\x01" + LABELS[4:], "its header is 00 00 0d 01"),
        (builders.idx(np.zeros((1, 2, 2), np.uint8)), "its header is 00 00 08 03"),
        (LABELS[:-1], "here: should hold 2 bytes after its header, it has 1"),
        (LABELS + b"\x00", "here: should hold 2 bytes after its header, it has 3"),
    ],
)
def test_anything_else_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        read_idx("here", raw, 1)


def test_the_wrong_file_is_named() -> None:
    pixels = builders.idx(np.zeros((2, 3, 4), np.uint8))
    with pytest.raises(CurvescopeError, match=r"^'second': is not an IDX file of labels"):
        decode([("first", pixels), ("second", pixels)])
