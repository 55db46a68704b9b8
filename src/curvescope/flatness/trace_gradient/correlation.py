"""Gradients by the weights of a convolution from errors of a few channels.

The few channels of ``δ`` are laid out once for each tap of the filter, where a convolution would
unfold the many of ``x``; what remains is a batched matrix product. (A convolution kernel would take
as long for two channels as for dozens.) With ``x`` unfolded in its place a whole step takes 1.4
times as long on a CPU (VGG-BN-small), 1.5 to 2.1 times on an H200.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from curvescope.flatness.trace_gradient.convolution import Settings


def correlate(
    delta: Tensor, x: Tensor, kernel: Sequence[int], settings: Settings, *, apart: bool
) -> Tensor:
    """``δ_n ⋆ x_n`` of every sample, ``[B, groups, k · taps, n]``, or their sum over the batch.

    The taps are in any order. Differentiable once in both.

    >>> delta, x = torch.ones(1, 1, 2), torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> correlate(delta, x, [2], Settings((1,), (0,), (1,), 1), apart=False).flatten().sort()[0]
    tensor([3., 6.])
    """
    steps = zip(kernel, settings.padding, settings.dilation, strict=True)
    padding = tuple(d * (k - 1) - p for k, p, d in steps)
    if max(settings.stride) > 1 or min(padding) < 0:
        delta, padding = _spread(delta, x.shape[2:], kernel, settings), (0,) * len(padding)
    windows = tuple(kernel), settings.dilation, padding
    g: Tensor = _Correlate.apply(delta, x, windows, settings.groups, apart)  # type: ignore[no-untyped-call]
    return g


def _spread(
    delta: Tensor, shape: Sequence[int], kernel: Sequence[int], settings: Settings
) -> Tensor:
    """Errors on the grid of the input, ``s`` apart and padded, for an input of spatial ``shape``.

    Output place ``o`` meets input place ``i = o s + τ d − p`` at tap ``τ``. In every dimension the
    outputs are placed ``s`` apart, and padded or cropped.
    """
    for axis in range(2, delta.ndim):
        j = axis - 2
        s, p, d = settings.stride[j], settings.padding[j], settings.dilation[j]
        delta = delta.movedim(axis, -1)
        if s > 1:
            delta = F.pad(delta[..., None], (0, s - 1)).flatten(-2)[..., : 1 - s]
        sides = d * (kernel[j] - 1) - p, shape[j] + p - delta.shape[-1]
        delta = F.pad(delta, sides).movedim(-1, axis)
    return delta


Windows = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Kernel, dilation and padding of windows that move by single places."""


class _Correlate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, delta: Tensor, x: Tensor, windows: Windows, groups: int, apart: bool
    ) -> Tensor:
        batch, places = x.shape[0] * groups, math.prod(x.shape[2:])
        left = _laid_out(delta, windows).reshape(batch, -1, places)
        ctx.save_for_backward(left, x)
        ctx.windows, ctx.channels = windows, delta.shape[1]
        g = torch.bmm(left, x.reshape(batch, -1, places).mT).unflatten(0, (x.shape[0], -1))
        return g if apart else g.sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = grads
        left, x = (
            t.to(slope.dtype) for t in ctx.saved_tensors
        )  # their types differ under autocast
        slope = slope.expand(x.shape[0], *slope.shape[-3:]).flatten(0, 1)
        on_delta = on_x = None
        if ctx.needs_input_grad[0]:
            on_left = torch.bmm(slope, x.reshape(len(left), -1, left.shape[-1]))
            shape = (x.shape[0], ctx.channels, *ctx.windows[0], *x.shape[2:])
            on_delta = _overlaid(on_left.reshape(shape), ctx.windows)
        if ctx.needs_input_grad[1]:
            on_x = torch.bmm(slope.mT, left).reshape(x.shape)
        return on_delta, on_x, None, None, None


def _laid_out(delta: Tensor, windows: Windows) -> Tensor:
    """A view ``[B, k, *taps, *places]``: the entry under each tap of the window at each place."""
    kernel, dilation, padding = windows
    dims = len(kernel)
    if any(padding):
        delta = F.pad(delta, [p for p in reversed(padding) for _ in range(2)])
    for j in range(dims):
        d = dilation[j]
        delta = delta.unfold(2 + j, d * (kernel[j] - 1) + 1, 1)[..., ::d]
    return delta.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))


def _overlaid(slope: Tensor, windows: Windows) -> Tensor:
    """The adjoint of :func:`_laid_out`, tap by tap; ``Tensor.unfold`` has a slow one everywhere.

    ``F.fold`` takes images alone, and with it a step takes at most 4 % less.
    """
    kernel, dilation, padding = windows
    places = zip(slope.shape[2 + len(kernel) :], *windows, strict=True)
    extent = [n + d * (k - 1) - 2 * p for n, k, d, p in places]
    sizes = [n + 2 * p for n, p in zip(extent, padding, strict=True)]
    total = slope.new_zeros(*slope.shape[:2], *sizes)
    both: tuple[Any, ...] = (slice(None), slice(None))
    for tap in itertools.product(*(range(size) for size in kernel)):
        starts = zip(tap, dilation, slope.shape[2 + len(kernel) :], strict=True)
        under: tuple[Any, ...] = tuple(slice(t * d, t * d + n) for t, d, n in starts)
        total[both + under] += slope[both + tap]
    inside: tuple[Any, ...] = tuple(slice(p, p + n) for n, p in zip(extent, padding, strict=True))
    return total[both + inside]
