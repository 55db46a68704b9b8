"""Small data sets that travel inside the package, so that everything runs offline.

A file is read whole, compared with its SHA-256, and only then decoded; decoding never executes
anything (``allow_pickle=False``).
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
from torch import Tensor

from curvescope._checks import CurvescopeError, one_of


@dataclass(frozen=True)
class _Embedded:
    file: str
    sha256: str


_EMBEDDED = {
    "mnist-6k": _Embedded(
        "mnist-6k.npz", "bbe4d091d5f513f2eade560bb589db701aac09f2298253b0f2e4105d2378ad6e"
    ),
}


def load_embedded(
    name: str,
    *,
    split: str = "train",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """One split of an embedded data set: images ``[N, C, H, W]`` in [0, 1] and labels ``[N]``.

    ``"mnist-6k"``: 5,000 training and 1,000 test digits, balanced, in the order of MNIST itself,
    28×28 grey. Pixels are the original bytes divided by 255.

    Args:
        name: The data set.
        split: ``"train"`` or ``"test"``.
        dtype: The images' floating-point type; labels are ``int64``.
        device: Where both tensors go.

    Raises:
        CurvescopeError: If the name or split is unknown, or the file is missing or damaged.

    >>> X, y = load_embedded("mnist-6k", split="test")
    >>> X.shape, y.bincount().tolist()
    (torch.Size([1000, 1, 28, 28]), [100, 100, 100, 100, 100, 100, 100, 100, 100, 100])
    """
    where = f"load_embedded({name!r})"
    embedded = _EMBEDDED[one_of("load_embedded(name)", "name", name, _EMBEDDED)]
    one_of(where, "split", split, ("train", "test"))
    if not dtype.is_floating_point:
        msg = f"{where}: dtype must be a floating-point type, got {dtype}"
        raise CurvescopeError(msg)
    with np.load(io.BytesIO(_verified(where, embedded)), allow_pickle=False) as arrays:
        pixels, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    if pixels.ndim == 3:  # grey images are stored without their one channel
        pixels = pixels[:, None]
    X = torch.from_numpy(pixels).to(device=device, dtype=dtype) / 255
    return X, torch.from_numpy(labels).to(device=device, dtype=torch.int64)


def _verified(where: str, embedded: _Embedded) -> bytes:
    """The file's bytes, if they are the ones that were published."""
    try:
        raw = resources.files("curvescope.data").joinpath("files", embedded.file).read_bytes()
    except OSError:
        msg = f"{where}: {embedded.file} is missing from the package; reinstall curvescope"
        raise CurvescopeError(msg) from None
    if hashlib.sha256(raw).hexdigest() != embedded.sha256:
        msg = f"{where}: {embedded.file} is damaged, its checksum is wrong; reinstall curvescope"
        raise CurvescopeError(msg)
    return raw
