"""Full float32 precision where numbers enter a certificate, tensor cores where they do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def strict_precision() -> Iterator[None]:
    """Products and convolutions in full float32 for a while, whatever tensor cores may do.

    For drawing from a posterior and turning its mean into another basis. The user's settings come
    back.
    """
    with _precision("highest", tf32=False):
        yield


@contextmanager
def fast_precision() -> Iterator[None]:
    """Products and convolutions in TF32 for a while, where the device has it.

    For the steps of optimising a posterior: whatever comes out is certified in full precision
    afterwards. The user's settings come back.
    """
    with _precision("high", tf32=True):
        yield


@contextmanager
def _precision(products: str, *, tf32: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
