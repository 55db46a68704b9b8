"""Scales and shifts of norms: ``y = w ⊙ x̂ + b`` with what the norm makes of its input, ``x̂``.

The output of a norm is linear in its scale, channel by channel, whatever ``x̂`` is. So ``x̂`` is the
output with the scale 1 less that with the scale 0, for layer norms, group norms and RMS norms of
any make: those that compute in float32, and those that multiply by ``1 + w`` (then ``x̂ (1 + w)`` at
1 and 0 differ by ``x̂`` too).
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from curvescope.layers.kind import Kind, layer_kind
from curvescope.layers.twin import close, twin


class ScaleKind(Kind):
    """``y = w ⊙ x̂ + b`` with a number for each channel; :meth:`rows` are ``x̂: [B, T, m]``."""

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """See :class:`Kind`: one input, whose weight is the scale of each channel."""
        return self.weight.numel(), 1

    @torch.no_grad()
    def normalized(self, x: Tensor) -> Tensor:
        """``x̂``, in the layout of the output."""
        return self._at(x, 1.0) - self._at(x, 0.0)

    def _at(self, x: Tensor, scale: float) -> Tensor:
        """The output for a constant scale and no shift."""
        parts: dict[str, Tensor | None] = {"weight": torch.full_like(self.weight, scale)}
        if isinstance(self.module._parameters.get("bias"), Tensor):
            parts["bias"] = torch.zeros_like(self.weight)
        y = twin(self.module, **parts).forward(x)
        assert isinstance(y, Tensor)
        return y

    def rows(self, x: Tensor, samples: int) -> Tensor:
        """See :class:`Kind`."""
        return self.errors(self.normalized(x), samples)

    def errors(self, e: Tensor, samples: int) -> Tensor:
        """See :class:`Kind`."""
        e = e if self.channels == -1 else e.movedim(self.channels, -1)
        return e.reshape(samples, -1, self.weight.numel())

    @torch.no_grad()
    def agrees(self, x: Tensor, y: Tensor) -> bool:
        """See :class:`Kind`."""
        parts = [self.weight.flatten(), self.module._parameters.get("bias")]
        w, b = (t if t is None else self._along(t.flatten(), y) for t in parts)
        assert w is not None
        scaled = self._at(x, 0.0) + w * self.normalized(x)
        return close(scaled if b is None else scaled + b, y)

    def _along(self, t: Tensor, y: Tensor) -> Tensor:
        """A number for each channel, to multiply an output with."""
        if self.channels == -1:
            return t.reshape(self.weight.shape)
        return t.reshape(-1, *[1] * (y.ndim - 2))


@final
@layer_kind(nn.LayerNorm, nn.RMSNorm)
class Scale(ScaleKind):
    """Channels last; the scale may have several dimensions."""


@final
@layer_kind(nn.GroupNorm)
class ChannelScale(ScaleKind):
    """Channels second, positions after them."""

    channels = 1


@final
@layer_kind(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNormScale(ScaleKind):
    """A batch norm with running statistics: ``x̂ = (x − μ)/√(σ² + ε)`` (TR D.3 sets it so).

    References:
        TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
    """

    channels = 1

    @classmethod
    def computes(cls, module: nn.Module, base: type[nn.Module]) -> bool:
        """See :class:`Kind`; subclasses may differ in the shapes that they allow."""
        return type(module).forward is _BatchNorm.forward

    def works_in(self, mode: str) -> bool:
        """See :class:`Kind`: statistics of the batch let samples see each other."""
        return mode == "eval" and getattr(self.module, "running_mean", None) is not None

    @torch.no_grad()
    def normalized(self, x: Tensor) -> Tensor:
        """See :class:`ScaleKind`."""
        norm: Any = self.module
        spread = torch.rsqrt(norm.running_var + norm.eps)
        return (x - self._along(norm.running_mean, x)) * self._along(spread, x)
