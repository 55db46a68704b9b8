"""Cross-entropy at outputs too large to be held several times over: in pieces of some positions.

A language model has a logit for each of 50,000 tokens at each position. Whatever is asked for is
computed for a few positions at a time, from the logits themselves: the probabilities of all of them
are never there together.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from curvescope.problem.losses.base import Terms
from curvescope.problem.losses.softmax import HardAt

LARGE = 1 << 24  # logits from which on the probabilities are not stored
PIECE = 1 << 22  # logits at a time


class LargeHardAt(HardAt):
    """:class:`HardAt` with a pass over the logits for everything that is asked for."""

    def __init__(
        self, output: Tensor, axis: int, labels: Tensor, scale: Tensor | None, counted: Tensor,
        count: int, *, equal: bool,
    ) -> None:  # fmt: skip
        self._logits, self._axis, self._shape = output, axis % output.ndim, output.shape
        self._last = self._axis == output.ndim - 1
        self._labels, self._equal, self._counted, self.count = labels, equal, counted, count
        self._weights = scale
        self.weight = float(count if equal or scale is None else scale.double().sum())

    def _flat(self, t: Tensor, columns: int = 0) -> Tensor:
        """Positions in one dimension behind so many of columns, where the classes come last."""
        return t.flatten(columns, -2) if self._last else t

    def _parts(self) -> Iterator[tuple[slice, HardAt]]:
        """Some positions, or some samples where the classes do not come last."""
        z, labels, counted = self._flat(self._logits), self._labels, self._counted
        scale = self._weights
        if self._last:
            labels, counted = labels.flatten(), counted.flatten()
            scale = None if scale is None else scale.flatten()
        size = max(1, PIECE // z[0].numel())
        for start in range(0, len(z), size):
            at = slice(start, start + size)
            weights, some = None if scale is None else scale[at], counted[at]
            count = int(some.sum())
            yield at, HardAt(z[at], 1, labels[at], weights, some, count, equal=self._equal)

    def value(self) -> Tensor:
        """See :class:`LossAt`."""
        return torch.stack([part.value() for _, part in self._parts()]).sum()

    def gradient(self) -> Tensor:
        """See :class:`LossAt`."""
        out = self._logits.new_empty(self._shape)
        rows = self._flat(out)
        for at, part in self._parts():
            rows[at] = part.gradient()
        return out

    def hessian(self, t: Tensor) -> Tensor:
        """See :class:`LossAt`."""
        out = t.new_empty(t.shape)
        rows, columns = self._flat(out, 1), self._flat(t, 1)
        for at, part in self._parts():
            rows[:, at] = part.hessian(columns[:, at])
        return out

    def sample(self, samples: int, generator: torch.Generator) -> Tensor:
        """See :class:`LossAt`."""
        out = self._logits.new_empty(samples, *self._shape)
        rows = self._flat(out, 1)
        for at, part in self._parts():
            rows[:, at] = part.sample(samples, generator)
        return out

    def slopes(self) -> Tensor:
        """See :class:`LossAt`."""
        return torch.cat([part.slopes() for _, part in self._parts()], 1)

    def root(self) -> Tensor:
        """See :class:`LossAt`; for each position as many directions as there are classes."""
        return torch.cat([part.root() for _, part in self._parts()], 1)

    def each(self) -> Terms:
        """See :class:`LossAt`."""
        losses, weights, wrong = zip(
            *((t.losses, t.weights, t.wrong) for t in (p.each() for _, p in self._parts())),
            strict=True,
        )
        return Terms(torch.cat(losses), torch.cat(weights), torch.cat(wrong))
