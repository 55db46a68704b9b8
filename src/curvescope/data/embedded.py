"""Small data sets inside the package, so that everything runs offline.

A file is read whole, compared with its SHA-256, and only then decoded; decoding never executes
anything (``allow_pickle=False``).
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from curvescope._checks import one_of
from curvescope.errors import CurvescopeError
from curvescope.identity import checksum

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Embedded:
    """A file in the package, and what it holds."""

    name: str
    title: str
    file: str
    sha256: str
    shape: tuple[int, int, int]
    sizes: Mapping[str, int]
    classes: int = 10
    scale: int = 255


EMBEDDED: dict[str, Embedded] = {
    embedded.name: embedded
    for embedded in (
        Embedded(
            name="mnist-6k",
            title="the first 500 (train) and 100 (test) images of every class of MNIST",
            file="mnist-6k.npz",
            sha256="bbe4d091d5f513f2eade560bb589db701aac09f2298253b0f2e4105d2378ad6e",
            shape=(1, 28, 28),
            sizes={"train": 5_000, "test": 1_000},
        ),
        Embedded(
            name="fashion-mnist-3k",
            title="the first 250 (train) and 50 (test) images of every class of Fashion-MNIST",
            file="fashion-mnist-3k.npz",
            sha256="3aac72bfeff1e8c460bc7b4abb4f755c3c97beff77315b7415d1bc5528cd6326",
            shape=(1, 28, 28),
            sizes={"train": 2_500, "test": 500},
        ),
        Embedded(
            name="digits",
            title="scikit-learn's digits, the last 360 as test split",
            file="digits.csv.gz",
            sha256="09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
            shape=(1, 8, 8),
            sizes={"train": 1_437, "test": 360},
            scale=16,
        ),
    )
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
    28×28 gray. Pixels are the original bytes divided by 255. The same tensors, with their
    variants, come from :func:`curvescope.data.dataset`.

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
    embedded = EMBEDDED[one_of("load_embedded(name)", "name", name, EMBEDDED)]
    one_of(where, "split", split, ("train", "test"))
    if not dtype.is_floating_point:
        raise CurvescopeError(where, "`dtype` must be a floating-point type", given=dtype)
    pixels, labels = read_embedded(where, embedded, split)
    X = torch.from_numpy(pixels).to(device=device, dtype=dtype) / embedded.scale
    return X, torch.from_numpy(labels).to(device=device, dtype=torch.int64)


def read_embedded(where: str, embedded: Embedded, split: str) -> tuple[Bytes, Bytes]:
    """Images ``[N, C, H, W]`` and labels ``[N]`` of one split, as the bytes that the file holds."""
    raw = verified(where, embedded)
    if embedded.file.endswith(".npz"):
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            pixels, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    else:
        # 64 pixels and the label on each line. The set has no split of its own; cutting it in the
        # order of the file needs no random numbers.
        text = gzip.decompress(raw).decode("ascii")
        table: npt.NDArray[Any] = np.loadtxt(io.StringIO(text), dtype=np.uint8, delimiter=",")
        first = embedded.sizes["train"]
        table = table[:first] if split == "train" else table[first:]
        pixels, labels = np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1])
    return pixels.reshape(-1, *embedded.shape), labels


def verified(where: str, embedded: Embedded) -> bytes:
    """The file's bytes, if they are the ones that were published."""
    try:
        raw = resources.files("curvescope.data").joinpath("files", embedded.file).read_bytes()
    except OSError:
        rule = f"{embedded.file} is missing from the package"
        raise CurvescopeError(where, rule, remedy="reinstall curvescope") from None
    if checksum(raw) != embedded.sha256:
        rule = f"{embedded.file} is damaged, its checksum is wrong"
        raise CurvescopeError(where, rule, remedy="reinstall curvescope")
    return raw
