"""Networks that are a chain of layers: fully connected, LeNet5, VGG, All-CNN-C.

Two kinds of batch norm occur. DH's ``X-BN`` (D.2, table 5) puts one *after* every ReLU of a hidden
layer, *without* learnable scale and shift; that is what ``-BN`` means for fully connected networks
and LeNet5. The VGG of FF and TR is the usual one: *between* a layer and its ReLU, with scale and
shift. So is that of TR's fully connected networks ("batch normalization layers prior to ReLU",
footnote 4): ``-BN-ReLU``, in the order of the layers.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
    FF: Granziol (2020), *Flatness is a False Friend*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from curvescope.networks.spec import Chain, Layers, NetworkSpec


def _product(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


Norm = Literal["", "BN", "BN-ReLU"]
"""No batch norm, DH's after each ReLU, or the usual one before it."""


def _perceptron(inputs: int, widths: Sequence[int], outputs: int, norm: Norm) -> Layers:
    """``fc1 … fcL`` with a ReLU, and optionally a batch norm, after all but the last."""
    layers: Layers = []
    sizes = (inputs, *widths, outputs)
    for i, (before, after) in enumerate(pairwise(sizes), start=1):
        layers.append((f"fc{i}", nn.Linear(before, after)))
        if i < len(sizes) - 1:
            if norm == "BN-ReLU":
                layers.append((f"bn-fc{i}", nn.BatchNorm1d(after)))
            layers.append((f"relu-fc{i}", nn.ReLU()))
            if norm == "BN":
                layers.append((f"bn-fc{i}", nn.BatchNorm1d(after, affine=False)))
    return layers


def fully_connected(spec: NetworkSpec, widths: Sequence[int], *, norm: Norm = "") -> Chain:
    """``F-n^m``: flatten, then ``fc1 … fc(m+1)`` with ReLU between them (DH D.2, table 3).

    Without hidden layers it is (multinomial) logistic regression.
    """
    size = _product(spec.inputs)
    layers = _perceptron(size, widths, spec.classes, norm)
    return Chain.of(spec, [("flatten", nn.Flatten()), *layers])


def lenet5(spec: NetworkSpec, widths: dict[str, int], *, batch_norm: bool) -> Chain:
    """LeNet5 of DH D.2 (tables 4 and 5): two 5×5 convolutions, each ReLU and 2×2 max-pooling.

    The widths of ``conv1``, ``conv2``, ``fc1`` and ``fc2`` are 6, 16, 120 and 84 unless ``widths``
    says otherwise. Images smaller than the 32×32 of the paper make ``fc1`` smaller.
    """
    channels, *sides = spec.image
    layers: Layers = []
    for name, width in (("conv1", widths.get("conv1", 6)), ("conv2", widths.get("conv2", 16))):
        layers += [(name, nn.Conv2d(channels, width, 5)), (f"relu-{name}", nn.ReLU())]
        if batch_norm:
            layers.append((f"bn-{name}", nn.BatchNorm2d(width, affine=False)))
        layers.append((f"maxpool{name[-1]}", nn.MaxPool2d(2)))
        channels, sides = width, [(side - 4) // 2 for side in sides]
    if min(sides) < 1:
        raise spec.too_small(16)
    size = channels * _product(sides)
    hidden = (widths.get("fc1", 120), widths.get("fc2", 84))
    head = _perceptron(size, hidden, spec.classes, "BN" if batch_norm else "")
    return Chain.of(spec, [*layers, ("flatten", nn.Flatten()), *head])


# Channels of the 3×3 convolutions; 0 stands for 2×2 max-pooling.
_VGG = {
    11: (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    16: (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
}


def vgg(
    spec: NetworkSpec, depth: int, *, width: int | None, hidden: Sequence[int], batch_norm: bool
) -> Chain:
    """VGG without dropout: 3×3 convolutions ``conv1 …``, five poolings, then ``fc1 …``.

    Args:
        spec: Name, inputs and outputs. 28×28 images are padded with zeros to 32×32, without which
            the fifth pooling would have nothing left.
        depth: 11 or 16.
        width: Channels of every convolution (DH's ``-W48``), or the usual ones.
        hidden: Widths of the fully connected layers before the last.
        batch_norm: The usual batch norm, between each layer and its ReLU.
    """
    channels, *sides = spec.image
    layers: Layers = []
    if min(sides) < 28:
        raise spec.too_small(28)
    if min(sides) < 32:
        layers.append(("pad", nn.ZeroPad2d(2)))
        sides = [side + 4 for side in sides]
    convolutions = pools = 0
    for usual in _VGG[depth]:
        if usual == 0:
            pools += 1
            layers.append((f"maxpool{pools}", nn.MaxPool2d(2)))
            continue
        convolutions += 1
        after = width or usual
        layers.append((f"conv{convolutions}", nn.Conv2d(channels, after, 3, padding=1)))
        if batch_norm:
            layers.append((f"bn-conv{convolutions}", nn.BatchNorm2d(after)))
        layers.append((f"relu-conv{convolutions}", nn.ReLU()))
        channels = after
    size = channels * _product([side // 2**pools for side in sides])
    return Chain.of(
        spec, [*layers, ("flatten", nn.Flatten()), *_head(size, hidden, spec, batch_norm)]
    )


def _head(size: int, hidden: Sequence[int], spec: NetworkSpec, batch_norm: bool) -> Layers:
    layers: Layers = []
    for i, width in enumerate(hidden, start=1):
        layers.append((f"fc{i}", nn.Linear(size, width)))
        if batch_norm:
            layers.append((f"bn-fc{i}", nn.BatchNorm1d(width)))
        layers.append((f"relu-fc{i}", nn.ReLU()))
        size = width
    return [*layers, (f"fc{len(hidden) + 1}", nn.Linear(size, spec.classes))]


def all_cnn_c(spec: NetworkSpec) -> Chain:
    """All-CNN-C, the nine-layer CNN of FF and PP, without dropout (1,387,108 parameters).

    Nine convolutions: 3×3 with 96, 96, 96 (stride 2), 192, 192, 192 (stride 2) and 192 channels
    (the last one without padding), then 1×1 with 192 channels and one channel for each class, whose
    mean over the image is the output. All have a ReLU after them, the last one too in the original;
    here it is left out, because logits that cannot be negative train badly. The number of
    parameters is for 100 classes.
    """
    channels, *sides = spec.image
    plan = (  # channels, kernel, stride, padding
        *((96, 3, 1, 1), (96, 3, 1, 1), (96, 3, 2, 1)),
        *((192, 3, 1, 1), (192, 3, 1, 1), (192, 3, 2, 1)),
        *((192, 3, 1, 0), (192, 1, 1, 0), (spec.classes, 1, 1, 0)),
    )
    layers: Layers = []
    for i, (width, kernel, stride, padding) in enumerate(plan, start=1):
        layers.append((f"conv{i}", nn.Conv2d(channels, width, kernel, stride, padding)))
        if i < len(plan):
            layers.append((f"relu-conv{i}", nn.ReLU()))
        channels = width
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
    if min(sides) < 1:
        raise spec.too_small(9)
    pool = nn.AvgPool2d((sides[0], sides[1]))
    return Chain.of(spec, [*layers, ("avgpool", pool), ("flatten", nn.Flatten())])
