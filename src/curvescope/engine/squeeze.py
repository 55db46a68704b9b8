"""Leaving out of a layer what does not matter: inputs that never vary, outputs nothing reaches.

The border of images is the same in all of them, a dead ReLU puts a zero into the next layer and
sends a zero back to its own. With ``x = (x', c)``, ``c`` constant over samples and positions,
``W x = W' x' + (W_c c)·1``: all constant inputs are worth one input of 1, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.layers import as_matrix, as_stored
from curvescope.record.constant import WORTH, Lines


@dataclass(frozen=True)
class Part:
    """Which parameters of one layer a block is made of.

    Factors work on rows in which the weight is a matrix ``[m, n]``, outputs first; ``transposed``
    is the ``m`` of a weight that is stored as ``[n, m]``.
    """

    layer: str
    weight: bool
    bias: bool
    transposed: int | None = None

    def enter(self, rows: Tensor) -> Tensor:
        """Flat rows ``[c, P]`` as factors work on them."""
        if self.transposed is None or not self.weight:
            return rows
        weight, bias = self._split(rows)
        return torch.cat([as_matrix(weight, self.transposed, transposed=True).flatten(1), bias], 1)

    def leave(self, rows: Tensor) -> Tensor:
        """The inverse of :meth:`enter`."""
        if self.transposed is None or not self.weight:
            return rows
        weight, bias = self._split(rows)
        matrix = as_matrix(weight, self.transposed, transposed=False)
        return torch.cat([as_stored(matrix, transposed=True), bias], 1)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        assert self.transposed is not None
        width = self.transposed if self.bias else 0
        weight, bias = rows.split([rows.shape[1] - width, width], 1)
        return weight, bias


Pair = tuple[Tensor | None, Tensor | None]  # weight [c m, n] and bias [c m], where they take part


@dataclass(frozen=True)
class Squeeze:
    """A layer of ``m`` outputs and ``n`` inputs, and which of them are kept (None: all)."""

    m: int
    n: int
    outputs: Tensor | None = None  # indices
    constant: Lines | None = None

    @classmethod
    def of(cls, errors: Tensor, inputs: Tensor) -> Squeeze:
        """What can be left out of errors ``[B, K, T, m]`` and inputs ``[B, T, n]``."""
        m, n = errors.shape[3], inputs.shape[2]
        outputs = (errors != 0).flatten(0, 2).any(0)
        fewer = outputs.sum() <= WORTH * m and bool(outputs.any())
        index = outputs.nonzero()[:, 0] if fewer else None
        return cls(m, n, index, Lines.of(inputs.flatten(0, 1)))

    def errors(self, e: Tensor) -> Tensor:
        """The errors that are kept."""
        return e if self.outputs is None else e[..., self.outputs].contiguous()

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs that are kept, and a 1 for those that are not."""
        return x if self.constant is None else self.constant.without(x, -1)

    @property
    def shape(self) -> tuple[int, int]:
        """``(m, n)`` of what is kept."""
        m = self.m if self.outputs is None else len(self.outputs)
        n = self.n if self.constant is None else self.constant.size
        return m, n

    def enter(self, rows: Tensor, part: Part) -> Pair:
        """Flat rows ``[c, P]`` as weight and bias over what is kept."""
        sizes = [self.m * self.n * part.weight, self.m * part.bias]
        flat, bias = rows.split(sizes, 1)
        weight = flat.reshape(len(rows), -1, self.n)
        if self.outputs is not None:
            weight = weight[:, self.outputs] if part.weight else weight
            bias = bias[:, self.outputs] if part.bias else bias
        if self.constant is not None and part.weight:
            weight = self.constant.gather(weight, -1)
        return (
            weight.reshape(-1, self.shape[1]) if part.weight else None,
            bias.reshape(-1) if part.bias else None,
        )

    def zeros(self, count: int, part: Part, like: Tensor) -> Pair:
        """Room for the result of ``count`` rows."""
        m, n = self.shape
        weight = like.new_zeros(count * m, n) if part.weight else None
        return weight, like.new_zeros(count * m) if part.bias else None

    def leave(self, total: Pair, count: int) -> Tensor:
        """The inverse of :meth:`enter` for results: flat rows ``[c, P]``."""
        m, n = self.shape
        pieces = []
        weight, bias = total
        if weight is not None:
            weight = weight.view(count, m, n)
            if self.constant is not None:
                weight = self.constant.spread(weight, -1)
            pieces.append(self._tall(weight).flatten(1))
        if bias is not None:
            pieces.append(self._tall(bias.view(count, m)))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def split(self, flat: Tensor, part: Part) -> Pair:
        """Rows over what is kept, ``[c, m n + m]``, as weight and bias."""
        m, n = self.shape
        weight, bias = flat.split([m * n * part.weight, m * part.bias], 1)
        return (
            weight.reshape(-1, n) if part.weight else None,
            bias.reshape(-1) if part.bias else None,
        )

    def through(self, total: Pair) -> Pair:
        """:meth:`enter` of :meth:`leave`, without the way out.

        The constant inputs ``c`` come out as multiples of ``c`` and go in as their sum over ``c``.
        """
        weight, bias = total
        if weight is None or self.constant is None:
            return total
        weight = weight.clone()
        weight[:, len(self.constant.varying)] *= self.constant.values.square().sum()
        return weight, bias

    def _tall(self, t: Tensor) -> Tensor:
        """Zeros for the outputs that were left out."""
        if self.outputs is None:
            return t
        tall = t.new_zeros(len(t), self.m, *t.shape[2:])
        tall[:, self.outputs] = t
        return tall
