"""Large matrix products by the faster of the two libraries inside torch.

On a CPU torch multiplies matrices with MKL. On AMD's processors with full AVX-512 (family 26 and
later) MKL uses half of their width, and the other library, oneDNN, all of it: the same product
takes less than half of the time as the linear layer that torch's compiler calls, ``X Wᵀ``, whatever
lies in memory beside what. Everywhere else, and for small products, float64 or other devices, this
is torch's own product.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1 << 21  # multiplications from which the longer call is paid for
NARROWEST = 16  # rows, columns and terms
FIRST_FAMILY = 26  # Zen 5; before, AVX-512 is as fast as what MKL uses


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """``a b`` for ``a: [..., m, k]`` and ``b: [k, n]`` or ``b: [c, k, n]``, in fresh memory.

    >>> multiply(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    if not by_onednn(a, b):
        return torch.matmul(a, b)
    if b.ndim == 2:
        return _linear(a, b)
    if a.ndim == 2:
        return torch.stack([_linear(a, matrix) for matrix in b])
    return torch.stack([_linear(left, right) for left, right in zip(a, b, strict=True)])


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a b`` for matrices.

    >>> total = torch.ones(1, 1)
    >>> add_product(total, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    >>> total
    tensor([[12.]])
    """
    if by_onednn(a, b):
        total.add_(_linear(a, b))
    else:
        total.addmm_(a, b)


def affine(start: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``start + a b`` for matrices, in fresh memory; ``start`` may be one row for all.

    >>> affine(torch.ones(1, 1), torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[12.]])
    """
    if not by_onednn(a, b):
        return torch.addmm(start, a, b)
    if start.ndim < 2 or start.shape[0] == 1:
        return _linear(a, b, start.expand(1, b.shape[1])[0])
    whole = start.expand(a.shape[0], b.shape[1])
    total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(a, whole, b.t(), None, "add")
    return total


FASTER: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.mm.default: multiply, torch.ops.aten.addmm.default: affine
}  # fmt: skip
"""What runs in place of torch's own operation where :func:`by_onednn` says so."""


def _linear(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), start, "none", [], "")
    return product


def by_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether this product is faster there, and of the same precision."""
    if a.device.type != "cpu" or a.dtype != torch.float32 or b.dtype != torch.float32:
        return False
    if not 2 <= a.ndim <= 3 or not 2 <= b.ndim <= 3:
        return False
    sides = (a.shape[:-1].numel() if b.ndim == 2 else a.shape[-2], *b.shape[-2:])
    if min(sides) < NARROWEST or math.prod(sides) < SMALLEST:
        return False
    return wide_processor() and bool(torch.backends.mkldnn.enabled) and _rounds_to_float32()


def _rounds_to_float32() -> bool:
    """False where the user lets products round their factors to fewer bits."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return getattr(matmul, "fp32_precision", "none") in ("none", "ieee")


@cache
def wide_processor() -> bool:
    """Whether oneDNN is there and uses more of this processor than MKL does."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
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
