"""Linear layers, with a row of the weight for each output or for each input."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from curvescope.layers.kind import LayerKind, layer_kind
from curvescope.layers.twin import close


class Affine(LayerKind):
    """``y = W x + b`` along the last dimension, whatever counts the positions before it."""

    def rows(self, x: Tensor, samples: int) -> Tensor:
        """See :class:`LayerKind`."""
        return x.reshape(samples, -1, x.shape[-1])

    def errors(self, e: Tensor, samples: int) -> Tensor:
        """See :class:`LayerKind`."""
        return e.reshape(samples, -1, e.shape[-1])

    @torch.no_grad()
    def agrees(self, x: Tensor, y: Tensor) -> bool:
        """See :class:`LayerKind`."""
        m, n = self.matrix_shape
        if x.shape[-1:] != (n,) or y.shape != (*x.shape[:-1], m):
            return False
        bias = self.module._parameters.get("bias")
        product = x @ self.matrix.T
        return close(product if bias is None else product + bias, y)


@final
@layer_kind(nn.Linear)
class Linear(Affine):
    """The weight has a row for each output, ``[m, n]``."""


@final
class TransposedLinear(Affine):
    """The weight has a row for each input, ``[n, m]``, as that of GPT-2's ``Conv1D``.

    No class is registered: such layers are recognized by what they compute, see
    :mod:`curvescope.layers.recognition`.
    """

    transposed = True
