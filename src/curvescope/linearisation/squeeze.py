"""Leaving out of a layer what does not matter: inputs that never vary, outputs nothing reaches.

The border of images is the same in all of them, a dead ReLU puts a zero into the next layer and
sends a zero back to its own. With ``x = (x', c)``, ``c`` constant over samples and positions,
``W x = W' x' + (W_c c)·1``: all constant inputs are worth one input of 1, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORTH = 0.95  # the share of numbers that must remain at most for the change to be made
ALIGN = 16  # inputs are filled up with zeros to a multiple of this, which matrix products like


@dataclass(frozen=True)
class Part:
    """Which parameters of one layer a block is made of."""

    layer: str
    weight: bool
    bias: bool


Pair = tuple[Tensor | None, Tensor | None]  # weight [c m, n] and bias [c m], where they take part


@dataclass(frozen=True)
class Constant:
    """Indices of the inputs that vary and of those that do not, with the values of these."""

    varying: Tensor
    fixed: Tensor
    values: Tensor
    place: Tensor  # of every input among those that are kept, the one of the constants last
    factor: Tensor  # of every input: its constant value, or 1

    @classmethod
    def of(cls, varies: Tensor, first: Tensor) -> Constant:
        """From a mask of the inputs and the values of all in the first sample."""
        varying, fixed = varies.nonzero()[:, 0], (~varies).nonzero()[:, 0]
        place = torch.full_like(varies, len(varying), dtype=torch.int64)
        place[varying] = torch.arange(len(varying), device=varies.device)
        factor = torch.where(varies, 1.0, first)
        return cls(varying, fixed, first[fixed], place, factor)


@dataclass(frozen=True)
class Squeeze:
    """A layer of ``m`` outputs and ``n`` inputs, and which of them are kept (None: all)."""

    m: int
    n: int
    outputs: Tensor | None = None  # indices
    constant: Constant | None = None

    @classmethod
    def of(cls, errors: Tensor, inputs: Tensor) -> Squeeze:
        """What can be left out of errors ``[B, K, T, m]`` and inputs ``[B, T, n]``."""
        m, n = errors.shape[3], inputs.shape[2]
        outputs = (errors != 0).flatten(0, 2).any(0)
        first = inputs[0, 0]
        varies = (inputs != first).flatten(0, 1).any(0)
        kept = outputs if outputs.sum() <= WORTH * m and bool(outputs.any()) else None
        index = None if kept is None else kept.nonzero()[:, 0]
        if _aligned(int(varies.sum()) + 1) > WORTH * n:
            return cls(m, n, index)
        return cls(m, n, index, Constant.of(varies, first))

    def errors(self, e: Tensor) -> Tensor:
        """The errors that are kept."""
        return e if self.outputs is None else e[..., self.outputs].contiguous()

    def inputs(self, x: Tensor) -> Tensor:
        """The inputs that are kept, and a 1 for those that are not."""
        if self.constant is None:
            return x
        return self._wide(x[..., self.constant.varying], x.new_ones(*x.shape[:-1], 1))

    def _wide(self, varying: Tensor, one: Tensor) -> Tensor:
        """The two side by side, filled up with zeros."""
        both = torch.cat([varying, one], -1)
        return torch.nn.functional.pad(both, (0, self.shape[1] - both.shape[-1]))

    @property
    def shape(self) -> tuple[int, int]:
        """``(m, n)`` of what is kept."""
        m = self.m if self.outputs is None else len(self.outputs)
        n = self.n if self.constant is None else _aligned(len(self.constant.varying) + 1)
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
            fixed = weight[..., self.constant.fixed] @ self.constant.values
            weight = self._wide(weight[..., self.constant.varying], fixed[..., None])
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
                weight = weight.index_select(2, self.constant.place).mul_(self.constant.factor)
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


def _aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN
