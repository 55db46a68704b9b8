"""Embeddings: tables whose rows are looked up, matrices that multiply one-hot vectors."""

from __future__ import annotations

from typing import cast, final

import torch
from torch import Tensor, nn

from curvescope.layers.kind import Kind, layer_kind
from curvescope.layers.twin import close, twin


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


@final
class ScaledEmbedding(LookupKind):
    """``y[t] = s W[i[t]]`` with a constant ``s``, as language models scale their embeddings.

    No class is registered: they are recognized by what they compute, see
    :mod:`curvescope.layers.recognition`.
    """

    @torch.no_grad()
    def factor(self, like: Tensor) -> Tensor:
        """``s``, as the module multiplies by it."""
        ones = twin(self.module, weight=self.weight.new_ones(1, 1).expand(self.weight.shape))
        row = torch.zeros(1, 1, dtype=torch.int64, device=self.weight.device)
        y = ones.forward(row)
        assert isinstance(y, Tensor)
        return y[0, 0, 0].to(like)

    def errors(self, e: Tensor, samples: int) -> Tensor:
        """See :class:`Kind`: errors of the rows themselves."""
        return super().errors(e * self.factor(e), samples)

    def frozen_row(self) -> int | None:
        """See :class:`LookupKind`."""
        return getattr(self.module, "padding_idx", None)

    @torch.no_grad()
    def agrees(self, x: Tensor, y: Tensor) -> bool:
        """See :class:`Kind`."""
        if x.is_floating_point():
            return False
        return close(self.factor(y) * self.weight[x], y)
