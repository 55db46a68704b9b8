"""Linear layers."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from curvescope.layers.kind import LayerKind, layer_kind


@final
@layer_kind(nn.Linear)
class Linear(LayerKind):
    """``y = W x + b`` along the last dimension, whatever counts the positions before it."""

    def rows(self, x: Tensor, samples: int) -> Tensor:
        """See :class:`LayerKind`."""
        return x.reshape(samples, -1, x.shape[-1])

    def errors(self, e: Tensor, samples: int) -> Tensor:
        """See :class:`LayerKind`."""
        return e.reshape(samples, -1, e.shape[-1])
