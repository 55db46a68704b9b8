"""Full float32 precision where the numbers enter a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def strict_precision() -> Iterator[None]:
    """Products and convolutions in full float32 for a while, whatever tensor cores may do.

    Optimising a posterior may well use TF32, if the user allows it; turning its mean into another
    basis and drawing from it may not. The user's settings come back.
    """
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
