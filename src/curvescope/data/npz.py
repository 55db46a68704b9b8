"""Subsets of a data set as plain arrays in one ``.npz`` file."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from curvescope._checks import CurvescopeError
from curvescope.io import read_arrays


def decode(
    where: str, files: Iterable[tuple[str, bytes]], split: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The arrays ``x_<split>`` and ``fine_<split>``: images ``[N, C, H, W]`` and labels ``[N]``.

    Raises:
        CurvescopeError: If the file is not such an archive; pickled objects are refused.
    """
    ((shown, raw),) = files
    arrays = read_arrays(raw, f"{where}: {shown}", (f"x_{split}", f"fine_{split}"))
    if len(arrays) < 2:
        msg = f"{where}: {shown} does not hold the arrays of a subset; it is another archive"
        raise CurvescopeError(msg)
    pixels, labels = arrays.values()
    if pixels.dtype != np.uint8 or labels.dtype != np.uint8:
        msg = f"{where}: {shown} must hold unsigned bytes, got {pixels.dtype} and {labels.dtype}"
        raise CurvescopeError(msg)
    return pixels, labels
