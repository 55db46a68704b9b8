"""Whether tensors still hold the numbers that they held, looked at before every product."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Snapshot:
    """The numbers of some tensors, to be compared with, bit by bit, later.

    Neither the place in memory nor autograd's version counter shows a write through ``.data`` or
    through another view of the memory, so that the numbers themselves are compared. This is exact:
    a checksum that is fast enough overlooks something, sums for example a change of all signs.

    Cost: the memory of the tensors once more; reading both at each comparison. On a GPU the host
    waits once.

    >>> weights = torch.tensor([1.0, 2.0])
    >>> snapshot = Snapshot([weights])
    >>> weights.data.neg_()
    tensor([-1., -2.])
    >>> snapshot.matches([weights])
    False
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        now = list(tensors)
        self._kinds = [_kind(tensor) for tensor in now]
        self._copies = [_bits(tensor).clone() for tensor in now]
        self._arrays = [copy.numpy() if copy.is_cpu else None for copy in self._copies]

    def matches(self, tensors: Iterable[Tensor]) -> bool:
        """Whether these are as many tensors with the same dtypes, shapes and numbers."""
        now = list(tensors)
        if [_kind(tensor) for tensor in now] != self._kinds:
            return False
        elsewhere = []
        for tensor, copy, array in zip(now, self._copies, self._arrays, strict=True):
            if array is not None:
                if np.count_nonzero(_bits(tensor).numpy() != array):  # faster than torch.equal
                    return False
            elif not copy.is_meta:
                elsewhere.append((_bits(tensor) != copy).any())
        return not elsewhere or not bool(torch.stack(elsewhere).any())


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.Size, torch.device]:
    return tensor.dtype, tensor.shape, tensor.device


def _bits(tensor: Tensor) -> Tensor:
    """The numbers as integers, so that NaN equals itself and −0.0 is not 0.0."""
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.view(_BITS[plain.itemsize])
