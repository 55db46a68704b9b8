"""Large matrix products by the faster of the two libraries inside torch.

On a CPU torch multiplies matrices with MKL and convolves with oneDNN. On AMD's processors with full
AVX-512 (family 26 and later) MKL uses half of their width and oneDNN all of it, so that the same
product takes half of the time as a convolution: the rows of ``a`` are the pixels of an image whose
channels lie side by side, and the columns of ``b`` are kernels of one pixel. Everywhere else, and
for small products, float64 or other devices, this is torch's own product.
"""

from __future__ import annotations

import math
import platform
import re
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d

SMALLEST = 1 << 25  # multiplications from which a convolution's preparations are paid for
NARROWEST = 64  # rows, columns and terms: with fewer, bringing the factors into order takes longer
FIRST_FAMILY = 26  # Zen 5; before, AVX-512 is as fast as what MKL uses


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """``a b`` for ``a: [..., m, k]`` and ``b: [k, n]`` or ``b: [c, k, n]``, in fresh memory.

    >>> multiply(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    if not as_convolution(a, b):
        return torch.matmul(a, b)
    if b.ndim == 2:
        rows = a.reshape(-1, a.shape[-1])
        return _convolved(rows, b).view(*a.shape[:-1], b.shape[1])
    if a.ndim == 2:
        return torch.stack([_convolved(a, matrix) for matrix in b])
    return torch.stack([_convolved(left, right) for left, right in zip(a, b, strict=True)])


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a b`` for matrices.

    >>> total = torch.ones(1, 1)
    >>> add_product(total, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    >>> total
    tensor([[12.]])
    """
    if as_convolution(a, b):
        total.add_(_convolved(a, b))
    else:
        total.addmm_(a, b)


def _convolved(a: Tensor, b: Tensor) -> Tensor:
    m, k = a.shape
    if a.stride(0) == 1 and b.stride(1) == 1 and b.shape[1] >= m:  # the columns of b as pixels
        return conv1d(b[None], a[:, :, None])[0]
    image = a.reshape(1, m, 1, k).permute(0, 3, 1, 2)
    return conv2d(image, b.T[:, :, None, None]).permute(0, 2, 3, 1).reshape(m, b.shape[1])


def as_convolution(a: Tensor, b: Tensor) -> bool:
    """Whether this product is faster as a convolution, and of the same precision."""
    if a.device.type != "cpu" or a.dtype != torch.float32 or b.dtype != torch.float32:
        return False
    if not 2 <= a.ndim <= 3 or not 2 <= b.ndim <= 3:
        return False
    sides = (a.shape[:-1].numel() if b.ndim == 2 else a.shape[-2], *b.shape[-2:])
    if min(sides) < NARROWEST or math.prod(sides) < SMALLEST:
        return False
    return wide_processor() and bool(torch.backends.mkldnn.enabled) and _rounds_to_float32()


def _rounds_to_float32() -> bool:
    """False where the user lets convolutions round their factors to fewer bits."""
    conv = getattr(torch.backends.mkldnn, "conv", None)
    return getattr(conv, "fp32_precision", "none") in ("none", "ieee")


@cache
def wide_processor() -> bool:
    """Whether oneDNN is there and uses more of this processor than MKL does."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and amd_family() >= FIRST_FAMILY


def amd_family(description: str | None = None) -> int:
    """The family of an AMD processor, 0 of another one; of this machine's by default.

    >>> amd_family("AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD")
    26
    >>> amd_family("vendor_id : GenuineIntel cpu family : 6 model : 143")
    0
    """
    if description is None:
        listed = Path("/proc/cpuinfo")
        description = listed.read_text()[:2000] if listed.is_file() else platform.processor()
    family = re.search(r"family\s*:?\s*(\d+)", description, re.IGNORECASE)
    return int(family[1]) if family and "AuthenticAMD" in description else 0
