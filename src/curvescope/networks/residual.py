"""Residual networks: DH's ResNet18, and the pre-activated networks of FF and PP.

Layers are named in the order in which the data meets them: ``conv1 …`` on the main road,
``sc-conv1 …`` on the shortcuts, ``fc1`` at the end.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
    FF: Granziol (2020), *Flatness is a False Friend*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.networks.spec import NetworkSpec


@dataclass(frozen=True)
class _Block:
    """The convolutions on the main road and, where the shapes differ, the one on the shortcut."""

    convolutions: tuple[str, ...]
    shortcut: str | None


class _Residual(nn.Module):
    """Adds layers under the papers' names and counts them."""

    spec: NetworkSpec

    def __init__(self, spec: NetworkSpec, *, bias: bool) -> None:
        super().__init__()
        self.spec = spec
        self._bias = bias
        self._blocks: list[_Block] = []
        self._convolutions = self._shortcuts = 0

    def _convolution(
        self, before: int, after: int, kernel: int, stride: int = 1, *, shortcut: bool = False
    ) -> str:
        if shortcut:
            self._shortcuts += 1
            name = f"sc-conv{self._shortcuts}"
        else:
            self._convolutions += 1
            name = f"conv{self._convolutions}"
        padding = kernel // 2
        self.add_module(name, nn.Conv2d(before, after, kernel, stride, padding, bias=self._bias))
        return name

    def _apply_layer(self, name: str, x: Tensor) -> Tensor:
        return getattr(self, name)(x)


class ResNet18(_Residual):
    """ResNet18 for small images: ``conv1 … conv17``, ``sc-conv1 … sc-conv3``, ``fc1``.

    As DH D.2: a 3×3 ``conv1`` with stride 1, four stages of two blocks of two 3×3 convolutions,
    a 1×1 convolution on the shortcut into each stage but the first, the mean over the image, and no
    batch norm; every convolution has ``width`` channels (``-W64``), or 64, 128, 256 and 512 in the
    four stages. Without batch norm the convolutions have a bias (DH does not say); with it (TR's
    ResNet18) the usual one stands after each convolution, which then has none.
    """

    def __init__(self, spec: NetworkSpec, *, width: int | None, batch_norm: bool) -> None:
        super().__init__(spec, bias=not batch_norm)
        channels, _, _ = spec.image
        self._batch_norm = batch_norm
        widths = (width,) * 4 if width else (64, 128, 256, 512)
        before = widths[0]
        self._normalized(channels, before, 3)
        for stage, after in enumerate(widths):
            for block in range(2):
                stride = 2 if stage > 0 and block == 0 else 1
                road = (
                    self._normalized(before, after, 3, stride),
                    self._normalized(after, after, 3),
                )
                crossing = stage > 0 and block == 0
                shortcut = (
                    self._normalized(before, after, 1, stride, shortcut=True) if crossing else None
                )
                self._blocks.append(_Block(road, shortcut))
                before = after
        self.fc1 = nn.Linear(before, spec.classes)

    def _normalized(
        self, before: int, after: int, kernel: int, stride: int = 1, *, shortcut: bool = False
    ) -> str:
        name = self._convolution(before, after, kernel, stride, shortcut=shortcut)
        if self._batch_norm:
            self.add_module(f"bn-{name}", nn.BatchNorm2d(after))
        return name

    def _apply_layer(self, name: str, x: Tensor) -> Tensor:
        x = super()._apply_layer(name, x)
        return super()._apply_layer(f"bn-{name}", x) if self._batch_norm else x

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[N, classes]`` of images ``[N, C, H, W]``."""
        x = F.relu(self._apply_layer("conv1", x))
        for block in self._blocks:
            first, second = block.convolutions
            road = self._apply_layer(second, F.relu(self._apply_layer(first, x)))
            x = F.relu(road + (self._apply_layer(block.shortcut, x) if block.shortcut else x))
        return self.fc1(x.mean((2, 3)))


class PreActivated(_Residual):
    """Residual networks whose blocks are batch norm, ReLU, convolution, in this order.

    The road of a block is a list of convolutions ``(channels, kernel, stride)``; the shortcut is
    the block's input itself, through a 1×1 convolution where stride or channels change. After the
    last block: batch norm, ReLU, the mean over the image, ``fc1``.
    """

    def __init__(self, spec: NetworkSpec, *, bias: bool) -> None:
        super().__init__(spec, bias=bias)
        channels, _, _ = spec.image
        self._convolution(channels, 16, 3)
        self._channels = 16

    def add_block(self, road: list[tuple[int, int, int]]) -> None:
        """Add a block after the last one."""
        start, names, strides = self._channels, [], 1
        for after, kernel, stride in road:
            norm = f"bn-conv{self._convolutions + 1}"
            self.add_module(norm, nn.BatchNorm2d(self._channels))
            names.append(self._convolution(self._channels, after, kernel, stride))
            self._channels, strides = after, strides * stride
        shortcut = None
        if start != self._channels or strides != 1:
            shortcut = self._convolution(start, self._channels, 1, strides, shortcut=True)
        self._blocks.append(_Block(tuple(names), shortcut))

    def finish(self) -> PreActivated:
        """Add the last batch norm and the classifier."""
        self.add_module("bn-fc1", nn.BatchNorm2d(self._channels))
        self.fc1 = nn.Linear(self._channels, self.spec.classes)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[N, classes]`` of images ``[N, C, H, W]``."""
        x = self._apply_layer("conv1", x)
        for block in self._blocks:
            road = x
            for name in block.convolutions:
                road = self._apply_layer(name, F.relu(self._apply_layer(f"bn-{name}", road)))
            x = road + (self._apply_layer(block.shortcut, x) if block.shortcut else x)
        return self.fc1(F.relu(self._apply_layer("bn-fc1", x)).mean((2, 3)))


def preresnet(spec: NetworkSpec, depth: int) -> PreActivated:
    """PreResNet of depth ``9n + 2``: three stages of ``n`` bottlenecks 1×1, 3×3, 1×1.

    The bottlenecks have 16, 32 and 64 channels and end in four times as many; convolutions have no
    bias. PreResNet-164 on 100 classes has 1,726,388 parameters (FF §4), with scale and shift of
    the batch norms.
    """
    blocks, rest = divmod(depth - 2, 9)
    if rest or blocks < 1:
        rule = "the depth must be 9n + 2, as 110 and 164 are"
        raise CurvescopeError(f"network({spec.name!r})", rule, given=depth)
    net = PreActivated(spec, bias=False)
    for stage, width in enumerate((16, 32, 64)):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            net.add_block([(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)])
    return net.finish()


def wide_resnet(spec: NetworkSpec, depth: int, factor: int) -> PreActivated:
    """WideResNet of depth ``6n + 4``: three stages of ``n`` blocks of two 3×3 convolutions.

    The stages have 16, 32 and 64 channels times ``factor``; convolutions have a bias, and the
    second one of a block has the stride. WideResNet-28x10 on 100 classes has 36,546,980 parameters
    (FF §4), with scale and shift of the batch norms; without those biases it would have 36,536,884.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        rule = "the depth must be 6n + 4, as 28 is"
        raise CurvescopeError(f"network({spec.name!r})", rule, given=depth)
    net = PreActivated(spec, bias=True)
    for stage, width in enumerate((16 * factor, 32 * factor, 64 * factor)):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            net.add_block([(width, 3, 1), (width, 3, stride)])
    return net.finish()
