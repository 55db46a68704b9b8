"""Convolutions: linear layers that are applied to patches of their input (DH A.2).

At every output position the input is the patch below it, unfolded in the order of
``weight.flatten(1)``.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.layers.kind import LayerKind, layer_kind
from curvescope.layers.moments import STRIP, add_gram

_CHUNK = {"cpu": 4 << 20, "cuda": 1 << 28}  # bytes of unfolded inputs
_FEW = 64  # positions below which samples are gathered into one product


@final
@layer_kind(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class Convolution(LayerKind):
    """A convolution in one, two or three dimensions."""

    channels = 1
    module: nn.Conv1d | nn.Conv2d | nn.Conv3d

    @classmethod
    def computes(cls, module: nn.Module, base: type[nn.Module]) -> bool:
        """See :class:`LayerKind`."""
        inner = getattr(type(module), "_conv_forward", None)
        return super().computes(module, base) and inner is getattr(base, "_conv_forward", None)

    @property
    def groups(self) -> int:
        """See :class:`LayerKind`."""
        return self.module.groups

    @property
    def _dims(self) -> int:
        return len(self.module.kernel_size)

    def _batched(self, t: Tensor) -> Tensor:
        """With a first dimension of images, which torch lets a single one do without."""
        return t if t.ndim == self._dims + 2 else t[None]

    def rows(self, x: Tensor, samples: int) -> Tensor:
        """See :class:`LayerKind`."""
        view = self._windows(self._batched(x))
        # [images, groups, *positions, channels of a group, *kernel]
        view = self._by_group(view).movedim(2, 2 + self._dims)
        return view.reshape(samples, -1, self.matrix_shape[1])

    def errors(self, e: Tensor, samples: int) -> Tensor:
        """See :class:`LayerKind`."""
        e, m, g = self._batched(e), self.matrix_shape[0], self.groups
        if g == 1:
            return e.flatten(2).movedim(1, 2).reshape(samples, -1, m)
        parts = e.reshape(e.shape[0], g, m // g, -1).movedim(2, 3)  # [images, g, T, m / g]
        spread = e.new_zeros(e.shape[0], g, parts.shape[2], g, m // g)
        spread.diagonal(dim1=1, dim2=3).copy_(parts.permute(0, 2, 3, 1))
        return spread.reshape(samples, -1, m)

    # Patches ------------------------------------------------------------------------------------

    def _windows(self, x: Tensor) -> Tensor:
        """``[images, channels, *output positions, *kernel]``: a view of the padded input."""
        view, module = self._padded(x), self.module
        for i, size in enumerate(module.kernel_size):
            reach = module.dilation[i] * (size - 1) + 1
            view = view.unfold(2 + i, reach, module.stride[i])[..., :: module.dilation[i]]
        return view

    def _padded(self, x: Tensor) -> Tensor:
        """The input with its border, as the layer itself makes it."""
        module = self.module
        sides = border(module.padding, module.kernel_size, module.dilation)
        widths = [width for pair in reversed(sides) for width in pair]  # last dimension first
        if not any(widths):
            return x
        mode = module.padding_mode
        return F.pad(x, widths) if mode == "zeros" else F.pad(x, widths, mode=mode)

    def _by_group(self, view: Tensor) -> Tensor:
        g = self.groups
        return view.reshape(view.shape[0], g, view.shape[1] // g, *view.shape[2:])

    # Moments ------------------------------------------------------------------------------------

    def add_input_moments(self, x: Tensor, samples: int, second: Tensor, first: Tensor) -> None:
        """See :class:`LayerKind`. Patches are unfolded for a few samples at a time.

        The positions are innermost, so that the patches never leave the cache.
        """
        x = self._batched(x)
        folded = x.shape[0] // samples  # images that belong to one sample
        n, positions = first.shape
        size = max(1, _CHUNK.get(x.device.type, 1 << 28) // (n * positions * x.element_size()))
        for piece in x.split(size * folded):
            U = self._patches(piece)  # [n, samples here, positions]
            U = U.reshape(n, piece.shape[0] // folded, positions)
            add_gram(second, U.flatten(1))
            first += U.sum(1)

    def _patches(self, x: Tensor) -> Tensor:
        """``[n, images, groups, *positions]``, unfolded."""
        view, dims = self._by_group(self._windows(x)), self._dims
        kernel = range(3 + dims, 3 + 2 * dims)
        return view.permute(2, *kernel, 0, 1, *range(3, 3 + dims)).flatten(0, dims)

    def add_error_moment(self, e: Tensor, samples: int, second: Tensor) -> None:
        """See :class:`LayerKind`. The errors of different groups do not meet."""
        e = self._batched(e)
        outputs = e.shape[1] // self.groups
        if self.groups == 1 and (e[0, 0].numel() < _FEW or outputs > 2 * STRIP):
            add_gram(second, e.transpose(0, 1).reshape(outputs, -1))
            return
        for start in range(0, e.shape[1], outputs):
            stop = start + outputs
            part = e[:, start:stop].flatten(2)
            second[start:stop, start:stop] += torch.bmm(part, part.mT).sum(0)


def border(
    padding: str | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int]]:
    """How wide the border is that a convolution adds, before and after, in each dimension.

    >>> border("same", (3, 4), (1, 1))
    [(1, 1), (1, 2)]
    """
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(int(width), int(width)) for width in padding]
