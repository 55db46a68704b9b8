"""The checksum of what a file holds: of its tensors and its text, not of how they are laid out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from curvescope.identity import digest
from curvescope.io.text import canonical


def checksum(tensors: Mapping[str, Tensor], plain: Any = None) -> str:
    """Thirty-two hexadecimal digits of named tensors and of plain JSON.

    >>> import torch
    >>> checksum({"w": torch.zeros(2)}) == checksum({"w": torch.zeros(2, 1)})
    False
    """
    return digest(canonical(plain), dict(tensors))[:32]
