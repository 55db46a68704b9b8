"""Subsets of a data set as plain arrays in one ``.npz`` file."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from curvescope._checks import CurvescopeError

# What numpy raises for files that are foreign, damaged, or hold objects, which are not admitted.
_DAMAGED = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error)


def decode(
    where: str, files: Iterable[tuple[str, bytes]], split: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The arrays ``x_<split>`` and ``fine_<split>``: images ``[N, C, H, W]`` and labels ``[N]``.

    Raises:
        CurvescopeError: If the file is not such an archive; pickled objects are refused.
    """
    ((shown, raw),) = files
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            pixels, labels = arrays[f"x_{split}"], arrays[f"fine_{split}"]
    except _DAMAGED as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = f"{where}: {shown} does not hold the arrays of a subset ({reason})"
        raise CurvescopeError(msg) from None
    if pixels.dtype != np.uint8 or labels.dtype != np.uint8:
        msg = f"{where}: {shown} must hold unsigned bytes, got {pixels.dtype} and {labels.dtype}"
        raise CurvescopeError(msg)
    return pixels, labels
