"""Centering and scaling of images, with statistics of the whole training split.

The sums are over integers, so that the constants do not depend on machine, device or threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["none", "pixel", "channel"]
KINDS: tuple[Kind, ...] = ("none", "pixel", "channel")

_CHUNK = 1000  # images that are squared at a time


@dataclass(frozen=True, eq=False)
class Normalization:
    """``x = (p − mean) / std`` for a pixel ``p`` that was scaled to [0, 1].

    ``mean`` and ``std`` are float64 and broadcast over images ``[C, H, W]``: they have that shape
    for ``"pixel"``, ``[C, 1, 1]`` for ``"channel"``, and are 0 and 1 for ``"none"``.
    """

    kind: Kind
    mean: Tensor
    std: Tensor

    def apply_(self, X: Tensor) -> Tensor:
        """Normalize images in place and return them."""
        if self.kind == "none":
            return X
        return X.sub_(self.mean.to(X)).div_(self.std.to(X))

    def undo(self, X: Tensor) -> Tensor:
        """The pixels in [0, 1] that normalized images came from.

        >>> half = Normalization("channel", torch.tensor([[[0.5]]]), torch.tensor([[[0.25]]]))
        >>> half.undo(torch.full((1, 1, 1, 1), 2.0)).item()
        1.0
        """
        return X * self.std.to(X) + self.mean.to(X)


def unnormalized() -> Normalization:
    """Pixels as they are."""
    return Normalization(
        "none", torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    )


def fit(kind: Kind, pixels: Tensor, scale: int) -> Normalization:
    """The normalization that a training split asks for.

    The mean and the standard deviation (of the population: divided by the count) of every pixel, or
    of every channel over all its pixels. What is constant in the training split is centered and
    not scaled.

    Args:
        kind: ``"none"``, ``"pixel"`` or ``"channel"``.
        pixels: The training images ``[N, C, H, W]`` as unsigned bytes.
        scale: The byte that stands for 1.

    >>> images = torch.tensor([[[[0, 7]]], [[[255, 7]]]], dtype=torch.uint8)
    >>> fit("pixel", images, 255).mean.flatten().tolist(), fit("pixel", images, 255).std.tolist()
    ([0.5, 0.027450980392156862], [[[0.5, 1.0]]])
    """
    if kind == "none":
        return unnormalized()
    total = torch.zeros(pixels.shape[1:], dtype=torch.int64)
    squares = torch.zeros_like(total)
    for chunk in pixels.split(_CHUNK):
        integers = chunk.to(torch.int32)
        total += integers.sum(0)
        squares += integers.square_().sum(0)
    count = len(pixels)
    if kind == "channel":
        total, squares = (sums.sum((1, 2), keepdim=True) for sums in (total, squares))
        count *= pixels[0, 0].numel()
    # Python's integers, since count · squares may pass 2^63: the variance is zero or it is not.
    pairs = zip(total.flatten().tolist(), squares.flatten().tolist(), strict=True)
    spread = [(count * q - s * s) ** 0.5 / count / scale or 1.0 for s, q in pairs]
    std = torch.tensor(spread, dtype=torch.float64).view_as(total)
    return Normalization(kind, total.double() / count / scale, std)
