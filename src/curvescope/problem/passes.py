"""Checking that a loader gives the same data in every pass.

A product sums over one pass, and an estimator compares the products of many. A loader with random
augmentation makes each product belong to another matrix, as does one that shuffles where the
batches are part of the loss. So for each sample its inner product with a fixed random vector is
stored, and a later pass must give the same numbers in any order; whether in the same batches is
recorded as well. The cost is one read of the inputs, of which a product makes several.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_TOLERANCE = 1e-4  # relative to the largest number: inner products round differently by batch


class Passes:
    """The numbers of the first whole pass, compared with those of all later ones.

    ``rebatched`` says whether a later pass had the same samples in other batches.

    >>> passes = Passes()
    >>> X = torch.eye(3)
    >>> passes.same([passes.note(X)]), passes.rebatched
    (True, False)
    >>> passes.same([passes.note(X[[2, 0]]), passes.note(X[1:2])]), passes.rebatched
    (True, True)
    >>> passes.same([passes.note(X + 0.1)])
    False
    """

    def __init__(self) -> None:
        self.rebatched = False
        self._first: tuple[Tensor, Tensor] | None = None
        self._vectors: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}

    def note(self, tree: Any) -> Tensor:
        """A number for each sample of a batch; or one for the batch."""
        leaves = [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]
        lengths = {len(t) if t.ndim else 0 for t in leaves}
        samples = lengths.pop() if len(lengths) == 1 and 0 not in lengths else 1
        total: Tensor | None = None
        for i, leaf in enumerate(leaves):
            number = self._project(i, leaf.reshape(samples, -1))
            total = number if total is None else total + number
        return torch.zeros(1) if total is None else total

    def _project(self, leaf: int, rows: Tensor) -> Tensor:
        if rows.dtype not in (torch.float32, torch.float64):
            rows = (torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows).float()
        key = leaf, rows.shape[1], rows.dtype, rows.device
        v = self._vectors.get(key)
        if v is None:
            g = torch.Generator().manual_seed(leaf)
            v = torch.randn(rows.shape[1], generator=g).to(rows.device, rows.dtype)
            self._vectors[key] = v
        return torch.mv(rows, v)

    def same(self, notes: list[Tensor]) -> bool:
        """Whether a whole pass has the numbers of the first one, which is stored."""
        each = torch.cat(notes).double().sort().values
        batches = torch.stack([note.double().sum() for note in notes]).sort().values
        if self._first is None:
            self._first = each, batches
        if not _close(each, self._first[0]):
            return False
        self.rebatched = self.rebatched or not _close(batches, self._first[1])
        return True


def _close(numbers: Tensor, first: Tensor) -> bool:
    if numbers.shape != first.shape:
        return False
    scale = first.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return torch.allclose(numbers, first, rtol=0.0, atol=float(_TOLERANCE * scale), equal_nan=True)
