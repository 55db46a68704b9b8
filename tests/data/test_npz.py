"""Subsets in ``.npz`` files: plain arrays are read, anything else is refused."""

import io

import numpy as np
import pytest

from curvescope.data import dataset
from curvescope.data.npz import decode
from curvescope.errors import CurvescopeError
from tests.data.builders import write


def test_a_subset_is_read(tmp_path, subset) -> None:
    contents, arrays = subset
    write(tmp_path / "cifar-100-subset", contents)
    for split, (pixels, labels) in arrays.items():
        data = dataset("cifar-100-subset", root=tmp_path, split=split)
        assert data.classes == 100
        assert data.y.tolist() == labels.tolist()
        np.testing.assert_array_equal((data.X * 255).round().numpy(), pixels)


def archive(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


BYTES = np.zeros((2, 3, 1, 1), np.uint8)
GOOD = archive(x_train=BYTES, fine_train=BYTES[:, 0, 0, 0])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is not an archive of plain arrays"),
        (b"<html>404</html>", "is not an archive of plain arrays"),
        (GOOD[:-30], "is not an archive of plain arrays"),
        (archive(x_train=BYTES), "does not hold the arrays of a subset"),
        (archive(x_train=np.array([{}]), fine_train=BYTES), "is not an archive of plain arrays"),
        (archive(x_train=BYTES / 255, fine_train=BYTES), "must hold unsigned bytes, got float64"),
    ],
)
def test_anything_else_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(CurvescopeError, match=f"^'there': {message}") as caught:
        decode([("there", raw)], "train")
    assert "\n" not in str(caught.value)
