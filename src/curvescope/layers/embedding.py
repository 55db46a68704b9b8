"""Embeddings: tables whose rows are looked up, matrices that multiply one-hot vectors."""

from __future__ import annotations

from typing import cast, final

from torch import Tensor, nn

from curvescope.layers.kind import Kind, layer_kind


class LookupKind(Kind):
    """A table ``W: [n, m]`` with ``y[t] = W[i[t]]``: the input is one-hot and never written out.

    :meth:`rows` are the indices ``i: [B, T]``.
    """

    transposed = True

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """See :class:`Kind`: ``(m, n)`` with ``n`` rows in the table."""
        n, m = self.weight.shape
        return m, n

    def rows(self, x: Tensor, samples: int) -> Tensor:
        """See :class:`Kind`."""
        return x.reshape(samples, -1).long()

    def errors(self, e: Tensor, samples: int) -> Tensor:
        """See :class:`Kind`."""
        return e.reshape(samples, -1, e.shape[-1])

    def frozen_row(self) -> int | None:
        """A row of the table that has no derivative."""
        return None

    def reaching(self, errors: Tensor, indices: Tensor) -> Tensor:
        """Errors ``[B, K, T, m]`` as they reach the table: zero at a row without derivative."""
        row = self.frozen_row()
        if row is None:
            return errors
        return errors.masked_fill((indices == row)[:, None, :, None], 0.0)


@final
@layer_kind(nn.Embedding)
class Embedding(LookupKind):
    """``nn.Embedding``; its padding has no derivative.

    One that renormalizes its rows, or scales its gradient by the frequency, is of no kind.
    """

    module: nn.Embedding

    @classmethod
    def computes(cls, module: nn.Module, base: type[nn.Module]) -> bool:
        """See :class:`Kind`."""
        table = cast(nn.Embedding, module)
        plain = table.max_norm is None and not table.scale_grad_by_freq
        return plain and super().computes(module, base)

    def frozen_row(self) -> int | None:
        """See :class:`LookupKind`."""
        return self.module.padding_idx
