"""Linear and convolution layers as matrices that act on rows: ``y[t] = W x[t] + b``.

A convolution is a linear layer that is applied at every output position ``t`` to the patch of the
input below it (DH A.2); :func:`rows_of` cuts out the patches.
"""

from __future__ import annotations

from math import prod

import torch.nn.functional as F
from torch import Tensor, nn

from curvescope._layers import LAYERS

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | Convolution


def supported(module: nn.Module) -> bool:
    """Whether a module computes what a linear layer or a convolution computes.

    A subclass counts as long as it leaves ``forward`` alone and owns a plain ``weight``.
    """
    for kind in LAYERS:
        if isinstance(module, kind):
            own = type(module)
            same = own.forward is kind.forward and getattr(own, "_conv_forward", None) is getattr(
                kind, "_conv_forward", None
            )
            return same and isinstance(module._parameters.get("weight"), Tensor)
    return False


def groups(layer: Layer) -> int:
    """In how many independent parts the layer splits its channels."""
    return 1 if isinstance(layer, nn.Linear) else layer.groups


def matrix_shape(layer: Layer) -> tuple[int, int]:
    """``(m, n)``: the weight as a matrix, kernel positions last, as ``weight.flatten(1)``."""
    return layer.weight.shape[0], prod(layer.weight.shape[1:])


def padded(layer: Convolution, x: Tensor) -> Tensor:
    """The input with its border, as the layer itself makes it."""
    widths = border(layer)
    if not any(widths):
        return x
    if layer.padding_mode == "zeros":
        return F.pad(x, widths)
    return F.pad(x, widths, mode=layer.padding_mode)


def border(layer: Convolution) -> list[int]:
    """Border widths in the order of ``F.pad``: last dimension first, before and after."""
    widths: list[int] = []
    for i in reversed(range(len(layer.kernel_size))):
        if layer.padding == "same":
            total = layer.dilation[i] * (layer.kernel_size[i] - 1)
            widths += [total // 2, total - total // 2]
        elif layer.padding == "valid":
            widths += [0, 0]
        else:
            widths += [int(layer.padding[i])] * 2
    return widths


def windows(layer: Convolution, x: Tensor) -> Tensor:
    """``[B, channels, *output positions, *kernel]``: a view of the padded input."""
    view = padded(layer, x)
    for i, size in enumerate(layer.kernel_size):
        reach = layer.dilation[i] * (size - 1) + 1
        view = view.unfold(2 + i, reach, layer.stride[i])[..., :: layer.dilation[i]]
    return view


def rows_of(layer: Layer, x: Tensor, samples: int) -> Tensor:
    """The layer's input as ``[B, T, n]``; with groups as ``[B, groups · T, n]``, group by group."""
    if isinstance(layer, nn.Linear):
        return x.reshape(samples, -1, x.shape[-1])
    dims = len(layer.kernel_size)
    x = x if x.ndim == dims + 2 else x[None]
    view = windows(layer, x)
    batch, channels = view.shape[:2]
    view = view.reshape(batch, layer.groups, channels // layer.groups, *view.shape[2:])
    # [batch, groups, *positions, channels of a group, *kernel]
    view = view.movedim(2, 2 + dims)
    return view.reshape(samples, -1, matrix_shape(layer)[1])


def errors_of(layer: Layer, e: Tensor, samples: int) -> Tensor:
    """A cotangent of the layer's output as ``[B, T, m]``, positions as in :func:`rows_of`.

    With groups every group has its own positions, at which the channels of the others are zero.
    """
    m = layer.weight.shape[0]
    if isinstance(layer, nn.Linear):
        return e.reshape(samples, -1, m)
    e = e if e.ndim == len(layer.kernel_size) + 2 else e[None]
    if layer.groups == 1:
        return e.flatten(2).movedim(1, 2).reshape(samples, -1, m)
    g = layer.groups
    parts = e.reshape(e.shape[0], g, m // g, -1).movedim(2, 3)  # [batch, g, T, m / g]
    spread = e.new_zeros(e.shape[0], g, parts.shape[2], g, m // g)
    spread.diagonal(dim1=1, dim2=3).copy_(parts.permute(0, 2, 3, 1))
    return spread.reshape(samples, -1, m)
