"""Subsets of a data set as plain arrays in one ``.npz`` file."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from curvescope.errors import CurvescopeError
from curvescope.io import read_arrays


def decode(
    files: Iterable[tuple[str, bytes]], split: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The arrays ``x_<split>`` and ``fine_<split>``: images ``[N, C, H, W]`` and labels ``[N]``.

    Raises:
        CurvescopeError: If the file is not such an archive; pickled objects are refused.
    """
    ((name, raw),) = files
    where = repr(name)
    arrays = read_arrays(raw, where, (f"x_{split}", f"fine_{split}"))
    if len(arrays) < 2:
        rule = "does not hold the arrays of a subset"
        raise CurvescopeError(where, rule, remedy="it is another archive")
    pixels, labels = arrays.values()
    if pixels.dtype != np.uint8 or labels.dtype != np.uint8:
        rule = "must hold unsigned bytes"
        raise CurvescopeError(where, rule, given=f"{pixels.dtype} and {labels.dtype}")
    return pixels, labels
