"""The IDX format of MNIST: a big-endian header, then the bytes of one array.

The header is two zero bytes, the type of the entries (8: unsigned bytes), the number of dimensions,
and each dimension as an unsigned 32-bit integer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from curvescope.errors import CurvescopeError

_UNSIGNED_BYTES = 8


def read_idx(where: str, raw: bytes, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in an IDX file.

    Args:
        where: The beginning of error messages, naming the file.
        raw: The file's contents, uncompressed.
        dimensions: How many dimensions the array must have.

    Raises:
        CurvescopeError: If this is no such file, or is shorter or longer than its header says.

    >>> raw = bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9])
    >>> read_idx("example", raw, 2)
    array([[7, 8, 9]], dtype=uint8)
    """
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]):
        kind = "images" if dimensions == 3 else "labels"
        header = raw[:4].hex(" ") or "missing"
        raise CurvescopeError(where, f"is not an IDX file of {kind}, its header is {header}")
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4)]
    expected = math.prod(shape)
    if len(raw) - start != expected:
        rule = f"should hold {expected:,} bytes after its header, it has {len(raw) - start:,}"
        raise CurvescopeError(where, rule)
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def decode(
    files: Iterable[tuple[str, bytes]],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images ``[N, 1, H, W]`` and labels ``[N]`` from the file of images and that of labels."""
    (images_at, images), (labels_at, labels) = files
    pixels = read_idx(repr(images_at), images, 3)
    return pixels[:, None], read_idx(repr(labels_at), labels, 1)
