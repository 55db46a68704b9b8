"""Reading a split of the catalog: files are located, verified and decoded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from curvescope.data import cifar, idx, npz
from curvescope.data.contents import contents
from curvescope.data.embedded import Embedded, read_embedded
from curvescope.data.places import find, missing, roots
from curvescope.data.sources import Source
from curvescope.errors import CurvescopeError

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]


def read_split(
    where: str, source: Source | Embedded, split: str, root: str | os.PathLike[str] | None
) -> tuple[Tensor, Tensor]:
    """Images ``[N, C, H, W]`` as bytes and labels ``[N]`` as int64, on the CPU.

    Args:
        where: The beginning of error messages.
        source: The data set.
        split: ``"train"`` or ``"test"``.
        root: A folder to look in first; of no interest to an embedded set.

    Raises:
        CurvescopeError: If a file is missing, damaged, or not what the catalog says.
    """
    if isinstance(source, Embedded):
        pixels, labels = read_embedded(where, source, split)
    else:
        folders = roots(where, root)
        place = find(source, split, folders)
        if place is None:
            raise missing(where, source, split, folders)
        pixels, labels = _decode(source, split, contents(where, source, split, place))
    count, shape = source.sizes[split], source.shape
    if pixels.shape != (count, *shape) or labels.shape != (count,):
        raise CurvescopeError(
            where,
            f"the {split} split must have {count:,} images {list(shape)} and as many labels, the "
            f"files have {list(pixels.shape)} and {list(labels.shape)}",
        )
    if not 0 <= labels.min() <= labels.max() < source.classes:
        label_range = f"{labels.min()} … {labels.max()}"
        rule = f"labels must lie in 0 … {source.classes - 1}, the files have {label_range}"
        raise CurvescopeError(where, rule)
    writable = np.require(pixels, requirements=["C", "W"])
    return torch.from_numpy(writable), torch.from_numpy(labels.astype(np.int64))


def _decode(source: Source, split: str, files: Iterable[tuple[str, bytes]]) -> Arrays:
    match source.format:
        case "idx":
            return idx.decode(files)
        case "cifar":
            return cifar.decode(files, source.shape)
        case "npz":
            return npz.decode(files, split)
